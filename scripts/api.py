"""Write docs/reference/api.md from the public docstrings; with --check, only report whether it is up to date.

Sources are parsed, not imported, so that the page is the same with every Python and needs no torch or ROS.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from generated import ROOT, write_or_check

PAGE = ROOT / "docs" / "reference" / "api.md"
PACKAGE = "vla_accel_ros"
EXTENDING = (
    "vla_accel_ros.extensions:ControllerKind",
    "vla_accel_ros.extensions:names",
    "vla_accel_ros.extensions:find",
    "vla_accel_ros.models.checkpoints.formats:Format",
    "vla_accel_ros.models.checkpoints.formats:Contents",
    "vla_accel_ros.nodes.adapters.adapter:Setup",
    "vla_accel_ros.nodes.adapters.adapter:Adapter",
    "vla_accel_ros.control.outputs.output:Output",
)
"""The interfaces for adding a model family, a controller or a policy; see CONTRIBUTING.md."""
WIDTH = 100
EXPLAINED = r"[a-z_]+(?:, [a-z_]+)*: "

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """Return the whole of docs/reference/api.md."""
    sys.path.insert(0, str(ROOT))
    face = __import__(PACKAGE)
    lines = ["# API", "", "Made by `python scripts/api.py` from the docstrings; do not edit.", ""]
    lines += [f"## from {PACKAGE} import ...", "", f"{_text(face.__doc__)}", ""]
    for name in face.__all__:
        lines += _entry(f"{face._MODULES[name]}:{name}", name)
    lines += ["## For packages that add to this one", ""]
    lines += ["[CONTRIBUTING.md](../../CONTRIBUTING.md) says how to add what.", ""]
    for reference in EXTENDING:
        lines += _entry(reference, reference.replace(":", "."))
    return "\n".join(lines).rstrip() + "\n"


def _entry(reference: str, title: str) -> Iterator[str]:
    module, _, name = reference.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not there: mend its name in scripts/api.py or {PACKAGE}/__init__.py")
    body = ast.parse(Path(spec.origin).read_text()).body
    node = next((n for n in body if isinstance(n, (ast.ClassDef, Function)) and n.name == name), None)
    if node is None:
        raise SystemExit(f"{module} defines no {name}: name the module that does")
    yield from (f"### {title}", "")
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    else:
        yield from _function(node, node.name)


def _class(node: ast.ClassDef) -> Iterator[str]:
    yield from (_code(_constructor(node)), "", _text(ast.get_docstring(node)), "")
    for method in node.body:
        if isinstance(method, Function) and not method.name.startswith("_"):
            yield from (f"#### {node.name}.{method.name}", "")
            yield from _function(method, f"{node.name}.{method.name}")


def _function(node: Function, name: str) -> Iterator[str]:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if "property" in decorators:
        yield _code(f"{name}{returns.replace(' ->', ':')}")
    else:
        first = 0 if "." not in name or "staticmethod" in decorators else 1
        yield _code(_call(name, _parameters(node.args, first), returns))
    yield from ("", _text(ast.get_docstring(node)), "")


def _constructor(node: ast.ClassDef) -> str:
    """Return the constructor's call: from __init__, or from the fields of a dataclass."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return _call(node.name, _parameters(method.args, 1), "")
    fields = [_field(field) for field in node.body if isinstance(field, ast.AnnAssign)]
    return _call(node.name, fields, "")


def _field(node: ast.AnnAssign) -> str:
    """Return a dataclass field as a parameter: `field(default=x)` is x, `field(default_factory=f)` is f()."""
    default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "option":
        default = f" = {ast.unparse(node.value.args[0])}"
    elif isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "field":
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.value.keywords}
        default = f" = {given['default']}" if "default" in given else f" = {given['default_factory']}()"
    return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{default}"


def _parameters(arguments: ast.arguments, first: int) -> list[str]:
    """Return the parameters from index `first` on, each with its type and default."""
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(places) - len(arguments.defaults)), *arguments.defaults]
    written = [_parameter(place, default) for place, default in zip(places, defaults)][first:]
    if arguments.vararg is not None:
        written.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        written.append("*")
    written += [_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg is not None:
        written.append(f"**{_parameter(arguments.kwarg, None)}")
    return written


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _call(name: str, parameters: list[str], returns: str) -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returns}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(docstring: str | None) -> str:
    """Return a docstring as Markdown: paragraphs that explain names line by line become lists."""
    paragraphs = re.split(r"\n\s*\n", _escaped(docstring or ""))
    return "\n\n".join(_list(paragraph.splitlines()) for paragraph in paragraphs)


def _list(lines: list[str]) -> str:
    """Return a paragraph's lines as list items and a last sentence, or unchanged if it is no list."""
    if any(not re.match(rf"{EXPLAINED}|\s|Raises |Returns ", line) for line in lines):
        return "\n".join(lines)
    written, last = [], ""
    for line in lines:
        explained = re.match(rf"({EXPLAINED})(.*)", line)
        if explained:
            written.append(f"- `{explained[1].rstrip(': ')}`: {explained[2]}")
        elif line.startswith(" ") and written and not last:
            written.append(f"  {line.strip()}")
        else:
            written.append(line if last or not written else f"\n{line}")
            last = line
    return "\n".join(written)


def _escaped(text: str) -> str:
    """Escape HTML outside of code."""
    return "`".join(
        part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(text.split("`"))
    )


if __name__ == "__main__":
    raise SystemExit(write_or_check(__doc__, "api.py", {PAGE: page()}))
