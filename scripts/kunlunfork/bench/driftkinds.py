"""The kinds of edits: MATTER has to be told by `drift`, IDLE must not be."""

from __future__ import annotations

import ast
import random
import re

from kunlunfork.bench.driftcases import Edit, Maker, Sources, Target, World

_FLIP = {ast.Add: b"-", ast.Sub: b"+", ast.Mult: b"+", ast.Lt: b"<=", ast.LtE: b"<", ast.Gt: b">=", ast.GtE: b">"}
_FLIP |= {ast.Eq: b"!=", ast.NotEq: b"=="}
_GPU = "vllm.v1.worker.gpu."


def _edit(kind: str, symbol: object, files: dict[bytes, bytes], what: str) -> Edit:
    return Edit(kind, str(symbol), files, what)


def _bodies(world: World) -> tuple[Target, ...]:
    return (*world.launchers, *world.behind, *world.overridden)


def _flipped(world: World, chance: random.Random, target: Target) -> tuple[dict[bytes, bytes], str] | None:
    """An operator or a number of its body is another."""
    sources = world.sources
    places: list[tuple[int, int, bytes]] = []
    for statement in target.node.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.BinOp | ast.Compare):
                op = node.op if isinstance(node, ast.BinOp) else node.ops[0]
                right = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
                new = _FLIP.get(type(op))
                left = node.left
                start, end = sources.span(target.module, left)[1], sources.span(target.module, right)[0]
                between = sources.source(target.module)[start:end]
                if new is not None and re.fullmatch(rb" ?[-+*<>=!]+ ?", between):
                    places.append((start, end, b" %s " % new))
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                places.append((*sources.span(target.module, node), b"%d" % (node.value + 1)))
    if not places:
        return None
    place = chance.choice(places)
    line = sources.source(target.module).count(b"\n", 0, place[0]) + 1
    return sources.replaced(target.module, place), f"line {line}"


def body(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(_bodies(world))
    made = _flipped(world, chance, target)
    return made and _edit("body", target, *made)


def default(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(world.launchers)
    args = target.node.args
    if args.defaults and chance.random() < 0.5:
        start, end = world.sources.span(target.module, chance.choice(args.defaults))
        return _edit("default", target, world.sources.replaced(target.module, (start, end, b"4321")), "another default")
    plain = [a for a in args.args if a.arg != "self"]
    if not plain or args.defaults or args.kwonlyargs:
        return None
    _, end = world.sources.span(target.module, plain[-1])
    return _edit("default", target, world.sources.replaced(target.module, (end, end, b" = None")), "a new default")


def returns(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(world.launchers)
    if target.node.returns is None:
        return None
    start, end = world.sources.span(target.module, target.node.returns)
    new = chance.choice([b"int", b"list[int]", b"dict[str, int]", b"bytes"])
    return _edit("return type", target, world.sources.replaced(target.module, (start, end, new)), new.decode())


def swap(world: World, chance: random.Random) -> Edit | None:
    target, call, symbol = chance.choice(world.callers)
    pairs = [(a, b) for a, b in zip(call.args, call.args[1:], strict=False) if ast.unparse(a) != ast.unparse(b)]
    if not pairs:
        return None
    sources, (one, other) = world.sources, chance.choice(pairs)
    spans = [sources.span(target.module, node) for node in (one, other)]
    texts = [sources.source(target.module)[a:b] for a, b in spans]
    files = sources.replaced(target.module, (*spans[0], texts[1]), (*spans[1], texts[0]))
    return _edit("swapped arguments", symbol, files, f"in {target}")


def keyword(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice((*world.launchers, *world.overridden))
    args = target.node.args
    if args.vararg or args.kwonlyargs or args.kwarg or not args.args:
        return None
    _, end = world.sources.span(target.module, args.args[-1])
    if args.defaults:
        _, end = world.sources.span(target.module, args.defaults[-1])
    name = chance.choice([b"stream", b"required", b"num_groups"])
    return _edit("required keyword", target, world.sources.replaced(target.module, (end, end, b", *, " + name)), "")


def decorator(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice((*world.launchers, *world.behind))
    node = target.node
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    at = world.sources.at(target.module, first, 0)
    new = b" " * node.col_offset + chance.choice([b"@torch.compile\n", b"@torch.no_grad()\n", b"@record\n"])
    return _edit("decorator", target, world.sources.replaced(target.module, (at, at, new)), new.decode().strip())


def dtype(world: World, chance: random.Random) -> Edit | None:
    """The dtype of a buffer of `InputBuffers` that launchers of ours write to."""
    module = f"{_GPU}input_batch"
    sources = world.sources
    source = sources.source(module)
    start = source.index(b"class InputBuffers")
    end = source.index(b"\n\n\n", start)
    used = (b"input_ids", b"positions", b"query_start_loc", b"seq_lens")
    places = []
    for match in re.finditer(
        rb"self\.(\w+) = torch\.zeros\((?:[^()]|\([^()]*\))*?dtype=(torch\.\w+)", source[start:end]
    ):
        if match[1] in used:
            places.append((match[1].decode(), start + match.start(2), start + match.end(2), match[2]))
    if not places:
        return None
    name, a, b, was = chance.choice(places)
    new = chance.choice([t for t in (b"torch.int32", b"torch.int64", b"torch.int16", b"torch.float32") if t != was])
    return _edit("dtype", f"{module}:InputBuffers.{name}", sources.replaced(module, (a, b, new)), new.decode())


def passed(world: World, chance: random.Random) -> Edit | None:
    """A dtype in a function of the runner that goes into a field of the batch."""
    module, sources = f"{_GPU}model_runner", world.sources
    target = next(t for t in sources.functions(module) if t.name == "GPUModelRunner.prepare_inputs")
    start, end = sources.span(module, target.node)
    source = sources.source(module)
    pattern = rb"^ {8,}(\w+)(?:_np)? = np\.[^\n]*?(np\.(?:int32|int64|bool_))"
    places = list(re.finditer(pattern, source[start:end], re.MULTILINE))
    places = [m for m in places if m[1].decode().removesuffix("_np") in {f.removesuffix("_np") for f in world.fields}]
    if not places:
        return None
    match = chance.choice(places)
    new = chance.choice([b"np.int16", b"np.int8", b"np.uint32", b"np.float32"])
    files = sources.replaced(module, (start + match.start(2), start + match.end(2), new))
    return _edit(
        "dtype before a call", f"{module}:GPUModelRunner.prepare_inputs", files, f"{match[1].decode()} {new.decode()}"
    )


def move(world: World, chance: random.Random) -> Edit | None:
    """A launcher or a kernel goes to a module of its own."""
    targets = [t for t in (*world.launchers, *world.behind) if "." not in t.name]
    target = chance.choice(targets)
    sources, node = world.sources, target.node
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    start, (_, end) = sources.at(target.module, first, 0), sources.span(target.module, node)
    text = sources.source(target.module)[start:end]
    files = sources.replaced(target.module, (start, end, b""))
    path = sources.release.paths[target.module].removesuffix(b".py") + b"_%d.py" % chance.randrange(9)
    return _edit("moved", target, {**files, path: b"import torch\n\n\n" + text + b"\n"}, path.decode())


def gone(world: World, chance: random.Random) -> Edit | None:
    """A re-export, or what stands behind one, is deleted."""
    choices = [
        (
            "vllm.config",
            rb"^    VllmConfig,\n|^from vllm\.config\.vllm import \([^)]*\)\n",
            "vllm.config.vllm:VllmConfig",
        ),
        (
            "vllm.triton_utils",
            rb"^from vllm\.triton_utils\.importing import \([^)]*\)\n",
            "vllm.triton_utils.importing:HAS_TRITON",
        ),
    ]
    module, pattern, symbol = chance.choice(choices)
    source = world.sources.source(module)
    found = list(re.finditer(pattern, source, re.MULTILINE))
    if not found:
        return None
    match = chance.choice(found)
    return _edit("re-export", symbol, world.sources.replaced(module, (match.start(), match.end(), b"")), "")


def renamed_field(world: World, chance: random.Random) -> Edit | None:
    name = chance.choice(world.fields)
    module = f"{_GPU}input_batch"
    source = world.sources.source(module)
    match = re.search(rb"^    (%s): " % name.encode(), source, re.MULTILINE)
    if match is None:
        return None
    new = name.encode() + chance.choice([b"_gpu", b"_new", b"s_"])
    files = world.sources.replaced(module, (match.start(1), match.end(1), new))
    return _edit("field", f"{module}:InputBatch.{name}", files, new.decode())


# -- what does not matter


def comment(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(_bodies(world))
    statement = chance.choice(target.node.body)
    at = world.sources.at(target.module, statement.lineno, 0)
    text = chance.choice([b"# TODO: think.", b"# It's 1 < 2 (see #123).", b'# "quoted" and [a list] of words'])
    new = b" " * statement.col_offset + text + b"\n"
    return _edit("comment", "", world.sources.replaced(target.module, (at, at, new)), str(target))


def docstring(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(_bodies(world))
    first = target.node.body[0]
    text = chance.choice([b'"""Another one."""', b'"""It says [num_reqs] and int32."""', b"'''Two\n\n    lines.'''"])
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        files = world.sources.replaced(target.module, (*world.sources.span(target.module, first), text))
    else:
        at = world.sources.at(target.module, first.lineno, 0)
        files = world.sources.replaced(target.module, (at, at, b" " * first.col_offset + text + b"\n"))
    return _edit("docstring", "", files, str(target))


def formatting(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(_bodies(world))
    values = [n.value for n in ast.walk(target.node) if isinstance(n, ast.Assign)]
    if not values:
        return None
    start, end = world.sources.span(target.module, chance.choice(values))
    text = world.sources.source(target.module)[start:end]
    files = world.sources.replaced(target.module, (start, end, b"(\n" + b" " * 30 + text + b"\n" + b" " * 8 + b")"))
    return _edit("formatting", "", files, str(target))


def renamed_local(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice((*_bodies(world), *(t for t, _, _ in world.callers)))
    node = target.node
    if any(
        isinstance(n, ast.FunctionDef | ast.Lambda | ast.Global | ast.Nonlocal) for s in node.body for n in ast.walk(s)
    ):
        return None
    given = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    names = [n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name)]
    own = sorted({n.id for n in names if isinstance(n.ctx, ast.Store)} - given)
    if not own:
        return None
    old = chance.choice(own)
    new = old + chance.choice(["_", "_2", "_renamed"])
    if any(n.id == new for n in names):
        return None
    spans = [world.sources.span(target.module, n) for n in names if n.id == old]
    files = world.sources.replaced(target.module, *((a, b, new.encode()) for a, b in spans))
    return _edit("renamed local", "", files, f"{target} {old}")


def unrelated(world: World, chance: random.Random) -> Edit | None:
    target = chance.choice(world.unrelated)
    made = _flipped(world, chance, target)
    return made and _edit("unrelated function", "", made[0], f"{target} {made[1]}")


def added(world: World, chance: random.Random) -> Edit | None:
    module = chance.choice(world.modules)
    text = chance.choice([
        b"\n\ndef _brand_new(x):\n    return x + 1\n", b"\n\nclass _BrandNew:\n    def run(self): ...\n",
        b"\n\n_BRAND_NEW = {1: 2}\n",
    ])  # fmt: skip
    source = world.sources.source(module)
    return _edit("something new", "", {world.sources.release.paths[module]: source + text}, module)


def reordered(world: World, chance: random.Random) -> Edit | None:
    """Two neighbours of a module change places."""
    module = chance.choice(world.modules)
    tree, sources = world.sources.tree(module), world.sources
    pairs = [
        (a, b) for a, b in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(a, ast.FunctionDef) and isinstance(b, ast.FunctionDef) and a.name != b.name
    ]  # fmt: skip
    if not pairs:
        return None
    spans = [_whole(sources, module, node) for node in chance.choice(pairs)]
    texts = [sources.source(module)[a:b] for a, b in spans]
    return _edit("reordered", "", sources.replaced(module, (*spans[0], texts[1]), (*spans[1], texts[0])), module)


def _whole(sources: Sources, module: str, node: ast.FunctionDef) -> tuple[int, int]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return sources.at(module, first, 0), sources.span(module, node)[1]


MATTER: dict[str, Maker] = {
    "re-export": gone, "field": renamed_field, "dtype": dtype, "dtype before a call": passed, "default": default,
    "return type": returns, "swapped arguments": swap, "required keyword": keyword, "decorator": decorator,
    "moved": move, "body": body,
}  # fmt: skip
IDLE: dict[str, Maker] = {
    "something new": added, "reordered": reordered, "comment": comment, "docstring": docstring,
    "formatting": formatting, "renamed local": renamed_local, "unrelated function": unrelated,
}  # fmt: skip
