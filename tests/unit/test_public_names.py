"""The public names of the package: every one is there, and the two lists of them agree."""

import ast
import inspect

import framework


def test_every_public_name_loads():
    for name in framework.__all__:
        assert getattr(framework, name).__name__ == name


def test_type_checkers_see_the_same_names():
    tree = ast.parse(inspect.getsource(framework))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = sorted(alias.name for line in guarded.body for alias in line.names)
    assert seen == sorted(framework.__all__)


def test_former_names_load_the_renamed_class():
    from framework import Share, Split

    assert Share is Split
    assert not set(framework._FORMER_NAMES) & set(framework.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    assert not hasattr(framework, "Nothing")
