"""Kernels in LLVM's language, straight from their source.

Kernels are written in a small part of Python: every value is a 64-bit whole number, or the address of
a memory, of one of its tables or of a record. Its statements are assignments, ``if``, ``while``, ``for``
over ``range`` and calls of other kernels with positional arguments. A function is translated once for the types of
arguments it is called with, and nothing has to be found out that is not said where it stands. All else is refused.

Variables are places on the stack; LLVM makes registers of them. Words of a memory do not change while kernels
run, but for numbers, and a store to one field changes no other: LLVM is told both, and need not load the
same twice. ``BACKEND.md`` says what compiled numbers do otherwise than Python's.

The module is long because each kind of statement and expression that kernels have is a method of one class.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from replay.engine.backend import sources
from replay.engine.backend.memory import WORD_BYTES, FixedNumber, KernelMemory, Number, Records, StridedColumn


class ValueKind(NamedTuple):
    """Type of a value: a number, or what lies at an address."""

    name: str
    of: Any = None  # class of a memory, bits of the numbers of a vector, layout of records


NUMBER, COLUMN = ValueKind("number"), ValueKind("column")

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.LShift: "shl",
    ast.RShift: "ashr",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}


class KernelFunction:
    """A function that kernels call, or Python.

    Parameters
    ----------
    function
        Its source.
    is_part
        Whether it becomes a part of each function that calls it.
    """

    def __init__(self, function: Callable[..., Any], *, is_part: bool = False) -> None:
        self.function, self.is_part = function, is_part
        self.name = function.__name__

    def definition(self) -> ast.FunctionDef | None:
        """Its syntax tree; None if it is not at the top of a file of kernels, or that was edited before it was read."""
        code = self.function.__code__
        return _definitions(Path(code.co_filename)).get((code.co_name, code.co_firstlineno))


class Prefetch:
    """Asking for the cache line of ``part[index]``; no effect but on speed."""


class Operand(NamedTuple):
    """A value as LLVM's language writes it."""

    kind: ValueKind
    text: str


class Translation:
    """A kernel that Python calls, with all that it calls.

    Parameters
    ----------
    has_pointer_types
        Whether this release of LLVM tells addresses apart by what lies there.
    """

    def __init__(self, *, has_pointer_types: bool) -> None:
        self.has_pointer_types = has_pointer_types
        self.address = "i8*" if has_pointer_types else "ptr"
        self._names: dict[tuple[KernelFunction, tuple[ValueKind, ...]], str] = {}
        self._texts: list[str] = []
        self._notes: dict[str, int] = {}

    def entry(self, kernel: KernelFunction, memory: type[KernelMemory]) -> str:
        """Text of a module with a kernel that runs on a memory."""
        self._translate(kernel, (ValueKind("memory", memory),), kernel.name, "")
        suffix = "i8" if self.has_pointer_types else ""
        prefetch = f"declare void @llvm.prefetch.p0{suffix}({self.address}, i32, i32, i32)"
        notes = [f"!{number} = {text}" for text, number in self._notes.items()]
        return "\n".join([prefetch, *self._texts, *notes, ""])

    def call(self, kernel: KernelFunction, kinds: tuple[ValueKind, ...]) -> str:
        """Name of a function for arguments of some types."""
        key = kernel, kinds
        if key not in self._names:
            self._names[key] = f"{kernel.name}.{len(self._names)}"
            self._translate(kernel, kinds, self._names[key], "internal ")
        return self._names[key]

    def _translate(self, kernel: KernelFunction, kinds: tuple[ValueKind, ...], name: str, linkage: str) -> None:
        body = _Body(self, kernel, kinds)
        parameters = ", ".join(f"{self.type_of(kind)} %a{place}" for place, kind in enumerate(kinds))
        how = " alwaysinline" if kernel.is_part else ""
        self._texts.append(f"define {linkage}i64 @{name}({parameters}) nounwind{how} {{\n{body.text}\n}}")

    def type_of(self, kind: ValueKind) -> str:
        """LLVM's type of values."""
        return "i64" if kind is NUMBER else self.address

    def pointer_to(self, what: str) -> str:
        """LLVM's type of addresses at which something lies."""
        return f"{what}*" if self.has_pointer_types else "ptr"

    def tag(self, name: str) -> str:
        """Note that what has another tag lies elsewhere: no store to one field changes another."""
        root = self._note('!{!"memory of the kernels"}')
        kind = self._note(f'!{{!"{name}", !{root}, i64 0}}')
        return f"!tbaa !{self._note(f'!{{!{kind}, !{kind}, i64 0}}')}"

    def permanence(self) -> str:
        """Note that a word stays the same while kernels run."""
        return f"!invariant.load !{self._note('!{}')}"

    def _note(self, text: str) -> int:
        return self._notes.setdefault(text, len(self._notes))


class _Body:
    """Translation of one function for arguments of some types; its ``text`` is what stands between the braces."""

    def __init__(self, unit: Translation, kernel: KernelFunction, kinds: tuple[ValueKind, ...]) -> None:
        function = kernel.function
        self._unit, self._code = unit, function.__code__
        self._local_names = set(self._code.co_varnames)
        self._global_names = {"range": range} | function.__globals__
        self._places: list[str] = []
        self._lines: list[str] = []
        self._variables: dict[str, Operand] = {}
        self._are_set: frozenset[str] = frozenset()  # variables that surely are, where the last line leads
        self._loops: list[tuple[str, str]] = []  # of each loop around: where it goes on, where it ends
        self._count = 0
        self._is_open = True  # whether the last line leads to the next
        tree = kernel.definition()
        if tree is None:
            message = f"{kernel.name} is not at the top of a file of kernels, or that was edited meanwhile"
            raise self._error(self._code.co_firstlineno, message)
        match tree.args:
            case ast.arguments([], given, None, [], [], None, []) if len(given) == len(kinds):
                for place, (name, kind) in enumerate(zip(given, kinds, strict=True)):
                    self._set(name.arg, Operand(kind, f"%a{place}"), name)
            case _:
                message = f"{kernel.name}({ast.unparse(tree.args)}) takes no {len(kinds)} positional arguments"
                raise self._error(tree, message)
        self._statements(tree.body)
        if self._is_open:
            self._end("ret i64 0")
        self.text = "\n".join([*self._places, *self._lines])

    def _error(self, where: ast.AST | int, message: str) -> TypeError:
        line = where if isinstance(where, int) else getattr(where, "lineno", 0)
        return TypeError(f"{self._code.co_filename}:{line}: {message}, in a kernel")

    def _refuse(self, node: ast.AST) -> TypeError:
        return self._error(node, f"{ast.unparse(node)} is nothing that compiles")

    # --- Lines ----------------------------------------------------------------------------------

    def _put(self, code: str) -> str:
        """Write an instruction; the name of its value."""
        self._count += 1
        self._lines.append(f"%v{self._count} = {code}")
        return f"%v{self._count}"

    def _label(self) -> str:
        self._count += 1
        return f"L{self._count}"

    def _end(self, code: str) -> None:
        """Write the last instruction of a block."""
        self._lines.append(code)
        self._is_open = False

    def _begin(self, label: str) -> None:
        if self._is_open:
            self._end(f"br label %{label}")
        self._lines.append(f"{label}:")
        self._is_open = True

    def _place(self, what: str) -> str:
        """Name of a new place on the stack."""
        self._count += 1
        self._places.append(f"%p{self._count} = alloca {what}")
        return f"%p{self._count}"

    # --- Variables ------------------------------------------------------------------------------

    def _set(self, name: str, value: Operand, node: ast.AST) -> None:
        what = self._unit.type_of(value.kind)
        if name not in self._variables:
            self._variables[name] = Operand(value.kind, self._place(what))
        kind, place = self._variables[name]
        if kind != value.kind:
            other = f"{value.kind.name}{' of another layout' * (kind.name == value.kind.name)}"
            raise self._error(node, f"{name} is a {kind.name} and a {other}")
        self._lines.append(f"store {what} {value.text}, {self._unit.pointer_to(what)} {place}")
        self._are_set |= {name}

    def _variable(self, node: ast.Name) -> Operand:
        if node.id in self._are_set:
            kind, place = self._variables[node.id]
            what = self._unit.type_of(kind)
            return Operand(kind, self._put(f"load {what}, {self._unit.pointer_to(what)} {place}"))
        value = self._global(node)
        if not isinstance(value, int):
            raise self._error(node, f"{node.id} is no variable that is surely set before, and no whole number")
        return self._constant(node, value)

    def _global(self, node: ast.expr) -> Any:
        """Value of a name outside of the function; None if it is a variable, or no name."""
        if not isinstance(node, ast.Name) or node.id in self._local_names:
            return None
        return self._global_names.get(node.id)

    def _constant(self, node: ast.expr, number: int) -> Operand:
        if not -(1 << 63) <= number < 1 << 63:
            raise self._error(node, f"{number} has more than 64 bits")
        return Operand(NUMBER, str(int(number)))

    # --- Memory ---------------------------------------------------------------------------------

    def _behind(self, base: str, offset: str, how: str = " inbounds") -> str:
        """Address some bytes behind another."""
        return self._put(f"getelementptr{how} i8, {self._unit.address} {base}, i64 {offset}")

    def _cast(self, address: str, what: str) -> str:
        if not self._unit.has_pointer_types:
            return address
        return self._put(f"bitcast i8* {address} to {what}*")

    def _load(self, address: str, what: str, note: str) -> str:
        place = self._cast(address, what)
        return self._put(f"load {what}, {self._unit.pointer_to(what)} {place}, {note}")

    def _load_number(self, address: str, bits: int, tag: str) -> Operand:
        value = self._load(address, f"i{bits}", self._unit.tag(tag))
        return Operand(NUMBER, value if bits == 64 else self._put(f"sext i{bits} {value} to i64"))

    def _store_number(self, address: str, bits: int, tag: str, value: str) -> None:
        what = f"i{bits}"
        if bits < 64:
            value = self._put(f"trunc i64 {value} to {what}")
        place = self._cast(address, what)
        self._lines.append(f"store {what} {value}, {self._unit.pointer_to(what)} {place}, {self._unit.tag(tag)}")

    def _part(self, node: ast.Attribute, base: Operand) -> tuple[Any, str]:
        """Part of a memory, and the address of its word."""
        part = base.kind.of.parts.get(node.attr)
        if part is None:
            raise self._error(node, f"{base.kind.of.__name__} has no {node.attr}")
        return part, self._behind(base.text, str(base.kind.of.offsets[node.attr]))

    def _field(self, node: ast.Attribute, base: Operand) -> tuple[str, int, str]:
        """Address, bits and tag of a record's field."""
        layout = base.kind.of
        if base.kind.name != "record" or node.attr not in layout.fields:
            raise self._error(node, f"a {base.kind.name} has no {node.attr}")
        offset, width = layout.fields[node.attr]
        return self._behind(base.text, str(offset)), 8 * width, f"{layout.name}+{offset}"

    def _attribute(self, node: ast.Attribute) -> Operand:
        base = self._value(node.value)
        if base.kind.name != "memory":
            return self._load_number(*self._field(node, base))
        part, word = self._part(node, base)
        if isinstance(part, Number):
            return self._load_number(word, 64, f"number {node.attr}")
        if isinstance(part, FixedNumber):
            return Operand(NUMBER, self._load(word, "i64", self._unit.permanence()))
        if isinstance(part, StridedColumn):
            return Operand(COLUMN, word)
        if isinstance(part, Records):
            kind = ValueKind("records", part.layout)
        else:
            kind = ValueKind("vector", 8 * part.dtype.itemsize)
        return Operand(kind, self._load(word, self._unit.address, self._unit.permanence()))

    def _index(self, node: ast.expr) -> str:
        index = self._number(node)
        if _is_known(index) and int(index) < 0:
            raise self._error(node, f"{ast.unparse(node)} does not count from the end")
        return index

    def _element(self, base: Operand, index: str, how: str = " inbounds") -> str:
        """Address of an element of a vector, or of a record."""
        size = base.kind.of // 8 if base.kind.name == "vector" else base.kind.of.num_bytes
        return self._behind(base.text, self._put(f"mul i64 {index}, {size}"), how)

    def _subscript(self, node: ast.Subscript) -> Operand:
        base, index = self._value(node.value), self._index(node.slice)
        match base.kind.name:
            case "vector":
                return self._load_number(self._element(base, index), base.kind.of, f"vector{base.kind.of}")
            case "records":
                return Operand(ValueKind("record", base.kind.of), self._element(base, index))
            case "column":
                return self._of_column(base.text, index)
        raise self._error(node, f"a {base.kind.name} has no elements")

    def _of_column(self, words: str, index: str) -> Operand:
        """Number of any width: the last bytes of a word, without a branch."""
        places = (self._behind(words, str(place * WORD_BYTES)) for place in range(3))
        first, step, free = (self._load(place, "i64", self._unit.permanence()) for place in places)
        address = self._put(f"add i64 {first}, {self._put(f'mul i64 {index}, {step}')}")
        pointer = self._unit.pointer_to("i64")
        place = self._put(f"inttoptr i64 {address} to {pointer}")
        word = self._put(f"load i64, {pointer} {place}, align 1, {self._unit.tag('column')}")
        return Operand(NUMBER, self._put(f"ashr i64 {word}, {free}"))

    # --- Expressions ----------------------------------------------------------------------------

    def _number(self, node: ast.expr) -> str:
        value = self._value(node)
        if value.kind is not NUMBER:
            raise self._error(node, f"a {value.kind.name} is no number")
        return value.text

    def _value(self, node: ast.expr) -> Operand:
        match node:
            case ast.Constant(value=int(number)):
                return self._constant(node, number)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return self._constant(node, -number)
            case ast.Name():
                return self._variable(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BinOp():
                return Operand(NUMBER, self._binary(node, node.op, self._number(node.left), self._number(node.right)))
            case ast.UnaryOp(op=ast.USub()):
                return Operand(NUMBER, self._put(f"sub i64 0, {self._number(node.operand)}"))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) if _is_truth(node, self._global):
                return self._choice(node, Operand(NUMBER, "1"), Operand(NUMBER, "0"))
            case ast.IfExp():
                return self._choice(node.test, node.body, node.orelse)
            case ast.Call():
                return self._call(node)
        raise self._refuse(node)

    def _choice(self, test: ast.expr, yes: ast.expr | Operand, no: ast.expr | Operand) -> Operand:
        """One number or another."""
        place, pointer = self._place("i64"), self._unit.pointer_to("i64")
        labels = self._label(), self._label()
        end = self._label()
        self._branch(test, *labels)
        for label, value in zip(labels, (yes, no), strict=True):
            self._begin(label)
            number = value.text if isinstance(value, Operand) else self._number(value)
            self._lines.append(f"store i64 {number}, {pointer} {place}")
            self._end(f"br label %{end}")
        self._begin(end)
        return Operand(NUMBER, self._put(f"load i64, {pointer} {place}"))

    def _binary(self, node: ast.AST, operator: ast.operator, left: str, right: str) -> str:
        is_shift = isinstance(operator, ast.LShift | ast.RShift)
        if is_shift and _is_known(right) and not 0 <= int(right) < 64:
            raise self._error(node, f"{right} is no number of bits to shift by")
        if type(operator) in _BINARY:
            return self._put(f"{_BINARY[type(operator)]} i64 {left}, {right}")
        if not isinstance(operator, ast.FloorDiv):
            raise self._error(node, f"{type(operator).__name__} is nothing that compiles")
        quotient = self._put(f"sdiv i64 {left}, {right}")
        rest = self._put(f"sub i64 {left}, {self._put(f'mul i64 {quotient}, {right}')}")
        is_uneven = self._put(f"icmp ne i64 {rest}, 0")
        is_below = self._put(f"icmp slt i64 {self._put(f'xor i64 {rest}, {right}')}, 0")
        one = self._put(f"zext i1 {self._put(f'and i1 {is_uneven}, {is_below}')} to i64")
        return self._put(f"sub i64 {quotient}, {one}")

    def _call(self, node: ast.Call) -> Operand:
        called = self._global(node.func)
        if node.keywords or not isinstance(called, KernelFunction | Prefetch):
            raise self._error(node, f"{ast.unparse(node)} calls no kernel with positional arguments")
        given = [self._value(one) for one in node.args]
        if isinstance(called, Prefetch):
            return self._prefetch(node, given)
        name = self._unit.call(called, tuple(one.kind for one in given))
        words = ", ".join(f"{self._unit.type_of(one.kind)} {one.text}" for one in given)
        return Operand(NUMBER, self._put(f"call i64 @{name}({words})"))

    def _prefetch(self, node: ast.Call, given: list[Operand]) -> Operand:
        match given:
            case [Operand(ValueKind("vector" | "records")) as what, Operand(ValueKind("number"), index)]:
                address = self._element(what, index, "")
            case _:
                raise self._error(node, f"{ast.unparse(node)} asks for no element of a vector or of records")
        suffix = "i8" if self._unit.has_pointer_types else ""
        # To be read, to be kept as long as can be, from the memory of data.
        words = f"{self._unit.address} {address}, i32 0, i32 3, i32 1"
        self._lines.append(f"call void @llvm.prefetch.p0{suffix}({words})")
        return Operand(NUMBER, "0")

    def _branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Go on at one label or another."""
        match test:
            case ast.BoolOp():
                for one in test.values[:-1]:
                    following = self._label()
                    self._branch(one, *((following, no) if isinstance(test.op, ast.And) else (yes, following)))
                    self._begin(following)
                self._branch(test.values[-1], yes, no)
            case ast.UnaryOp(op=ast.Not()):
                self._branch(test.operand, no, yes)
            case ast.Constant(value=int(number)):
                self._end(f"br label %{yes if number else no}")
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARISONS:
                first, second = self._number(left), self._number(right)
                holds = self._put(f"icmp {_COMPARISONS[type(operator)]} i64 {first}, {second}")
                self._end(f"br i1 {holds}, label %{yes}, label %{no}")
            case ast.Compare():
                raise self._refuse(test)
            case _:
                holds = self._put(f"icmp ne i64 {self._number(test)}, 0")
                self._end(f"br i1 {holds}, label %{yes}, label %{no}")

    # --- Statements -----------------------------------------------------------------------------

    def _statements(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if not self._is_open:  # behind `return`, `break` or `continue`
                return
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                found = [self._value(one) for one in values]
                for target, one in zip(targets, found, strict=True):
                    self._assign(target, one)
            case ast.Assign(targets, value):
                one = self._value(value)
                for target in targets:
                    self._assign(target, one)
            case ast.AugAssign():
                self._change(node)
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Return():
                self._end(f"ret i64 {'0' if node.value is None else self._number(node.value)}")
            case ast.If():
                self._if(node)
            case ast.While(orelse=[]):
                first, body, end = self._label(), self._label(), self._label()
                self._begin(first)
                self._branch(node.test, body, end)
                self._begin(body)
                self._loop(node.body, first, end)
            case ast.For(ast.Name() as target, orelse=[]):
                self._for(node, target)
            case ast.Break():
                self._end(f"br label %{self._loops[-1][1]}")
            case ast.Continue():
                self._end(f"br label %{self._loops[-1][0]}")
            case _:
                raise self._error(node, f"{type(node).__name__} is nothing that compiles")

    def _place_of(self, target: ast.expr) -> tuple[str, int, str]:
        """Address, bits and tag of what a statement sets."""
        if isinstance(target, ast.Attribute):
            base = self._value(target.value)
            if base.kind.name != "memory":
                return self._field(target, base)
            part, word = self._part(target, base)
            if isinstance(part, Number):
                return word, 64, f"number {target.attr}"
            raise self._error(target, f"{base.kind.of.__name__}.{target.attr} is fixed")
        if isinstance(target, ast.Subscript):
            base, index = self._value(target.value), self._index(target.slice)
            if base.kind.name == "vector":
                return self._element(base, index), base.kind.of, f"vector{base.kind.of}"
        raise self._error(target, f"{ast.unparse(target)} cannot be set")

    def _assign(self, target: ast.expr, value: Operand) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value, target)
        elif value.kind is NUMBER:
            self._store_number(*self._place_of(target), value.text)
        else:
            raise self._error(target, f"a {value.kind.name} is kept in a variable only")

    def _change(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            before = self._variable(node.target).text
            value = self._binary(node, node.op, before, self._number(node.value))
            self._set(node.target.id, Operand(NUMBER, value), node)
            return
        address, bits, tag = self._place_of(node.target)
        before = self._load_number(address, bits, tag).text
        self._store_number(address, bits, tag, self._binary(node, node.op, before, self._number(node.value)))

    def _if(self, node: ast.If) -> None:
        yes, no, end = self._label(), self._label(), self._label()
        self._branch(node.test, yes, no)
        before, after = self._are_set, []
        for label, statements in ((yes, node.body), (no, node.orelse)):
            self._begin(label)
            self._are_set = before
            self._statements(statements)
            if self._is_open:
                after.append(self._are_set)
                self._end(f"br label %{end}")
        self._begin(end)
        self._are_set = frozenset.intersection(*after) if after else before

    def _loop(self, body: list[ast.stmt], first: str, end: str) -> None:
        """Translate what is done again and again, perhaps never, up to where the loop ends."""
        before = self._are_set
        self._loops.append((first, end))
        self._statements(body)
        self._loops.pop()
        if self._is_open:
            self._end(f"br label %{first}")
        self._begin(end)
        self._are_set = before

    def _for(self, node: ast.For, target: ast.Name) -> None:
        match node.iter:
            case ast.Call(called, given, []) if 1 <= len(given) <= 3 and self._global(called) is range:
                bounds = [self._number(one) for one in given]
            case _:
                raise self._error(node, "a loop is not over range")
        low, high, step = ["0", *bounds, "1"] if len(bounds) == 1 else [*bounds, "1"][:3]
        if step not in ("1", "-1"):
            raise self._error(node, "a range has a step other than 1 and -1")
        before = self._are_set
        first, body, end = self._label(), self._label(), self._label()
        place, pointer = self._place("i64"), self._unit.pointer_to("i64")
        self._lines.append(f"store i64 {low}, {pointer} {place}")
        self._begin(first)
        number = self._put(f"load i64, {pointer} {place}")
        holds = self._put(f"icmp {'slt' if step == '1' else 'sgt'} i64 {number}, {high}")
        self._end(f"br i1 {holds}, label %{body}, label %{end}")
        self._begin(body)
        self._lines.append(f"store i64 {self._put(f'add nsw i64 {number}, {step}')}, {pointer} {place}")
        self._set(target.id, Operand(NUMBER, number), target)
        self._loop(node.body, first, end)
        self._are_set = before


def _is_known(number: str) -> bool:
    """Tell whether a number is written out, and not the name of a value."""
    return not number.startswith("%")


def _is_truth(node: ast.expr, find: Callable[[ast.expr], Any]) -> bool:
    """Tell whether a value is 1 or 0, as what ``and`` and ``or`` say is; of Python it is an operand.

    Parameters
    ----------
    find
        Finds what is called; those that it calls in turn are not looked at.
    """
    match node:
        case ast.Compare() | ast.UnaryOp(ast.Not()) | ast.Constant(bool()):
            return True
        case ast.BoolOp(_, values):
            return all(_is_truth(one, find) for one in values)
        case ast.Call(name) if isinstance(called := find(name), KernelFunction) and (tree := called.definition()):
            returned = [one.value for one in ast.walk(tree) if isinstance(one, ast.Return)]
            return all(one is None or _is_truth(one, lambda _: None) for one in returned)
    return False


@cache
def _definitions(path: Path) -> dict[tuple[str, int], ast.FunctionDef]:
    """Functions of a file by name and first line, as its text was when this process began (`sources`)."""
    functions = [one for one in ast.parse(sources.TEXTS.get(path, b"")).body if isinstance(one, ast.FunctionDef)]
    return {(one.name, min([one.lineno, *(part.lineno for part in one.decorator_list)])): one for one in functions}
