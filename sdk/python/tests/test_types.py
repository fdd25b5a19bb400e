"""What type checkers of applications see, beyond what mypy checks in the SDK itself."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

import ringfence
import ringfence.testing

CLASSES = sorted(
    {
        found
        for module in (ringfence, ringfence.testing)
        for name, found in vars(module).items()
        if inspect.isclass(found) and not name.startswith("_") and found.__module__.startswith("ringfence.")
    },
    key=lambda found: (found.__module__, found.__qualname__),
)
PLAIN = {"str", "bytes", "int", "float", "bool"}


def untyped(found: type) -> list[str]:
    """Returns the public attributes whose type a checker has to guess: those without one, unless they are parameters of a plain type.

    Checkers of installed packages guess in different ways: pyright takes an attribute for a str to which a parameter of a Literal type is assigned.
    """
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(tree, ast.ClassDef)
    typed = {ast.unparse(node.target).removeprefix("self.") for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
    wrong = []
    for method in (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"):
        arguments = (*method.args.args, *method.args.kwonlyargs)
        plain = {argument.arg for argument in arguments if argument.annotation is not None and ast.unparse(argument.annotation) in PLAIN}
        for node in (node for node in ast.walk(method) if isinstance(node, ast.Assign)):
            for target in node.targets:
                if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "self" or target.attr.startswith("_"):
                    continue
                if target.attr not in typed and not (isinstance(node.value, ast.Name) and node.value.id in plain):
                    wrong.append(target.attr)
    return wrong


@pytest.mark.parametrize("found", [found for found in CLASSES if found is not ringfence.Event], ids=lambda found: found.__qualname__)
def test_attributes_have_types(found: type) -> None:
    assert untyped(found) == []


def test_the_classes_are_found() -> None:
    assert {ringfence.CallError, ringfence.AsyncReservation, ringfence.testing.Sent} <= set(CLASSES)
