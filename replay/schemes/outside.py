"""Schemes from outside the package: from a file that the user names, and from plug-ins.

Loading a file executes it, so nothing is loaded that the user did not name: a file that a document
names - a spec, a result, a study, a space - is refused unless the user allows it. A plug-in is a
package that was installed on purpose; it is executed when its scheme is asked for or listed.
"""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.files import expand_home, read_bytes, real
from replay.schemes.base import AnyScheme

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint
    from types import ModuleType

GROUP = "moereplay.schemes"

AllowCode = bool | frozenset[str]
"""Files that may be executed: any, none but those that this process has executed already, or those
of some SHA-256."""


GONE = {
    "outboxes": "store takes the SMs that issue, on=pool[src], and makes outboxes of them itself",
    "lane_outboxes": "store takes the warps that issue, on=lanes with lanes=True",
    "replay.schemes.ep.software": "kernels are listed as they are launched; leave `operations` out",
}
"""Names that schemes written for former versions use, and what is asked now."""


class CodeRefusedError(UserError):
    """A file would have to be executed that the user has neither named nor allowed."""


def is_file(reference: str) -> bool:
    """Tell whether a reference to a scheme is one to a file."""
    return ".py:" in reference or reference.endswith(".py")


def from_file(reference: str, *, allow_code: AllowCode) -> AnyScheme:
    """Execute a file and take a scheme from it.

    Parameters
    ----------
    reference
        ``path/to/file.py:Name``, where `Name` is a scheme or a subclass of `Scheme` or of
        `TensorScheme` that can be made without arguments.
    allow_code
        Whether the file may be executed.

    Raises
    ------
    CodeRefusedError
        Naming the file and its SHA-256, if it may not.
    UserError
        Naming the file and the line, if the file cannot be executed or has no such scheme.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = reference, ""
    path = real(expand_home(file))
    try:
        source = read_bytes(path)
    except OSError as error:
        message = f"scheme {reference!r}: {path} cannot be read: {error.strerror}"
        raise UserError(message) from None
    digest = hashlib.sha256(source).hexdigest()
    _check_allowed(reference, path, digest, allow_code)
    module = _execute(path, source, digest)
    schemes = [key for key, value in vars(module).items() if _is_scheme_of(module, value)]
    if not name:
        example = f"{file}:{schemes[0] if schemes else 'Name'}"
        message = f"scheme {reference!r}: name the scheme in the file, such as {example}"
        raise UserError(message)
    if not hasattr(module, name):
        raise unknown(f"scheme in {file}", name, schemes)
    scheme = _make(getattr(module, name), reference)
    scheme.code, scheme.origin = digest, f"{path}:{name}"
    copyreg.pickle(type(scheme), _reduce)
    return scheme


def _reduce(scheme: AnyScheme) -> tuple[Any, ...]:
    """Let another process find a scheme from a file by its file, which it cannot import."""
    if scheme.origin:
        return _found_again, (scheme.origin, scheme.code, dataclasses.asdict(scheme.options))
    return copyreg.__newobj__, (type(scheme),), vars(scheme)  # type: ignore[attr-defined]  # stub


def _found_again(origin: str, code: str, options: Mapping[str, Any]) -> AnyScheme:
    try:
        scheme = from_file(origin, allow_code=frozenset({code}))
    except CodeRefusedError:
        message = f"{origin}: the file was changed while it was in use"
        raise UserError(message) from None
    return scheme.with_options(options)


def _check_allowed(reference: str, path: Path, digest: str, allow_code: AllowCode) -> None:
    if isinstance(allow_code, frozenset):
        if digest in allow_code:
            return
        message = (
            f"scheme {reference!r}: {path} is another file than the one that was used: its SHA-256 "
            f"is {digest}, not {' or '.join(sorted(allow_code))}; --scheme {reference} executes it"
        )
        raise CodeRefusedError(message)
    if allow_code or _module_name(path, digest) in sys.modules:
        return
    message = (
        f"scheme {reference!r} is code of a file, {path} (SHA-256 {digest}), and it is a document "
        "that names it; with --allow-code it is executed (in Python: allow_code=True)"
    )
    raise CodeRefusedError(message)


def _module_name(path: Path, digest: str) -> str:
    key = hashlib.sha256(f"{path}\0{digest}".encode()).hexdigest()[:16]
    return f"moereplay_scheme_{path.stem}_{key}"


def _execute(path: Path, source: bytes, digest: str) -> ModuleType:
    """The file as a module; the same text at the same place is executed once."""
    name = _module_name(path, digest)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is executed
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        message = f"{where(error, path)}: {type(error).__name__}: {error_text(error)}"
        raise UserError(message) from None
    except SystemExit:
        del sys.modules[name]
        message = f"{path}: the file ends the program when it is loaded"
        raise UserError(message) from None
    return module


def where(error: BaseException, path: Path) -> str:
    """Place in a file at which an error was raised, such as ``my.py:12``."""
    line = None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(path):
                line = frame.lineno
    return f"{path}:{line}" if line else str(path)


class SchemeFailure(UserError):
    """A scheme from outside raised something that is no refusal.

    Attributes
    ----------
    sentence
        What it raised, and at which line of its source.
    """

    def __init__(self, scheme: AnyScheme, error: Exception) -> None:
        self.sentence = failure(scheme, error)
        super().__init__(f"scheme {scheme.name!r}: {self.sentence}")

    def __reduce__(self) -> tuple[Any, ...]:  # what it was made from stays in its process
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[SchemeFailure], args: tuple[str], state: dict[str, str]) -> SchemeFailure:
    made = kind.__new__(kind, *args)
    made.__dict__ |= state
    return made


def failure(scheme: AnyScheme, error: Exception) -> str:
    """Sentence about an error that was raised while a scheme built a layer."""
    if isinstance(error, SchemeFailure):
        return error.sentence
    if isinstance(error, UserError):
        return f"build refuses the layer: {error}"
    file = Path(inspect.getfile(type(scheme)))
    return f"build fails: {where(error, file)}: {type(error).__name__}: {error_text(error)}"


def error_text(error: BaseException) -> str:
    """Message of an error in one line, with what has taken the place of a name that is gone."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    gone = GONE.get(getattr(error, "name", None) or "", "")
    return " ".join(f"{text or 'no message'}{gone and ': '}{gone}".split())


def _is_scheme_of(module: ModuleType, value: Any) -> bool:
    if isinstance(value, AnyScheme):
        return True
    return isinstance(value, type) and issubclass(value, AnyScheme) and value.__module__ == module.__name__


def _make(found: Any, reference: str) -> AnyScheme:
    """A scheme of its own from a scheme or from the class of one."""
    if isinstance(found, AnyScheme):
        return found.with_options({})
    if not (isinstance(found, type) and issubclass(found, AnyScheme)):
        is_class = isinstance(found, type)
        kind = f"the class {found.__name__}" if is_class else f"{type(found).__name__!r}"
        message = f"scheme {reference!r}: expected a Scheme or a subclass of Scheme, not {kind}"
        raise UserError(message)
    missing = [key for key in ("name", "summary", "source", "traffic") if not hasattr(found, key)] + sorted(
        found.__abstractmethods__
    )
    if missing:
        message = f"scheme {reference!r}: {found.__name__} lacks {', '.join(missing)}"
        raise UserError(message)
    try:
        return found()
    except UserError:
        raise
    except Exception as error:  # whatever the file does
        message = f"scheme {reference!r}: {found.__name__} cannot be made: {error_text(error)}"
        raise UserError(message) from None


def plugins() -> dict[str, EntryPoint]:
    """Entry points of all installed plug-ins by name, not loaded yet."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def from_plugin(point: EntryPoint) -> AnyScheme:
    """Load the scheme of a plug-in.

    Raises
    ------
    UserError
        In one line, if it cannot be loaded or is no scheme.
    """
    package = point.dist.name if point.dist is not None else "unknown package"
    label = f"plug-in {point.name!r} of {package}"
    try:
        found = point.load()
    except Exception as error:
        message = f"{label} cannot be loaded: {type(error).__name__}: {error_text(error)}"
        raise UserError(message) from None
    scheme = _make(found, label)
    if scheme.name != point.name:
        message = f"{label}: its scheme is called {scheme.name!r}; the two names must be equal"
        raise UserError(message)
    file = getattr(sys.modules.get(type(scheme).__module__), "__file__", None)
    if file is not None:
        scheme.code = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return scheme
