"""A page as one HTML file that needs no other: no network, no font, no library."""

from tracegen.display.html.document import document as document
from tracegen.display.html.document import fragment as fragment
