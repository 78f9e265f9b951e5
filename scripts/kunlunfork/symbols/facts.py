"""What is known of one Python file. Names are qualified inside it (`Class.method`); lines count from 1."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Parameter:
    """`kind` is `positional`, `any`, `*`, `keyword` or `**`; the others are source text, '' for none."""

    name: str
    kind: str
    annotation: str = ""
    default: str = ""


@dataclass(frozen=True)
class Call:
    """A call inside a function; those of builtins, torch and NumPy are left out.

    `to` is what is called, as dotted text (`self.block_tables.gather`); `args` and
    `keywords` are fingerprints of what is passed, see `slices`. `star`: `*args` or `**kwargs` are among them.
    `launch`: a kernel is launched, `to[grid](...)`."""

    to: str
    line: int
    args: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    star: bool = False
    launch: bool = False


@dataclass(frozen=True)
class Function:
    """A function or method. `body` is a fingerprint of what it does, `shapes` are the comments that tell shapes or
    dtypes, `refs` the names that are not local to it as dotted text, `locals` what is known of the types of its
    locals: name -> annotation or dotted text of what is called to make it.

    `abstract`: it only raises NotImplementedError, or is declared abstract.
    """

    name: str
    line: int
    end: int
    params: tuple[Parameter, ...]
    returns: str
    decorators: tuple[str, ...]
    body: str
    shapes: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    refs: tuple[str, ...] = ()
    locals: tuple[tuple[str, str], ...] = ()
    abstract: bool = False

    @property
    def is_jit(self) -> bool:
        return any(d.split("(")[0].rpartition(".")[2] == "jit" for d in self.decorators)

    @property
    def signature(self) -> str:
        """As in the source: `(a: int, *, b=1) -> str`."""
        parts: list[str] = []
        for i, p in enumerate(self.params):
            before = self.params[i - 1].kind if i else ""
            if p.kind == "keyword" and before not in ("keyword", "*"):
                parts.append("*")
            if before == "positional" and p.kind != "positional":
                parts.append("/")
            star = {"*": "*", "**": "**"}.get(p.kind, "")
            text = f"{star}{p.name}" + (f": {p.annotation}" if p.annotation else "")
            parts.append(
                text + (f" = {p.default}" if p.default and p.annotation else f"={p.default}" * bool(p.default))
            )
        if self.params and self.params[-1].kind == "positional":
            parts.append("/")
        return f"({', '.join(parts)})" + (f" -> {self.returns}" if self.returns else "")


@dataclass(frozen=True)
class Attribute:
    """A field of a class, or what its methods set on `self`. `values` are fingerprints of what it is set to, `kinds`
    what that is made by (dotted text of a class or function), where it shows."""

    name: str
    line: int
    annotation: str = ""
    values: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    # Declared in the body of the class.
    declared: bool = False


@dataclass(frozen=True)
class Class:
    """`methods` are the names below it that are functions; `body` is a fingerprint of all of it."""

    name: str
    line: int
    end: int
    bases: tuple[str, ...]
    decorators: tuple[str, ...]
    body: str
    methods: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True)
class Constant:
    """A name that the module sets. `value` is a fingerprint, `text` the source where it is short."""

    name: str
    line: int
    end: int
    value: str
    text: str = ""
    annotation: str = ""


@dataclass(frozen=True)
class Import:
    """`name` is bound to `module`, or to its member `what`; `what` may be '*'. Dots in front of `module` count up from
    the package of the file. `where` is the function it stands in, '' for the module."""

    name: str
    module: str
    what: str = ""
    where: str = ""
    typing: bool = False


@dataclass(frozen=True)
class Facts:
    """One file. `exports` is `__all__`, None where there is none; `lazy` what a module-level `__getattr__` gives by a
    table: name -> `module:name`. `fault` is why it could not be read, '' else."""

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    imports: tuple[Import, ...] = ()
    exports: tuple[str, ...] | None = None
    lazy: dict[str, str] = field(default_factory=dict)
    fault: str = ""
