"""A page as one HTML file that needs no other: no network, no font, no library."""

from tracegen.shared.display.html.document import document as document
from tracegen.shared.display.html.document import fragment as fragment
