"""What decodes is said in the same words, with the same defaults and the same refusals, on every command."""

from typing import Any

import pytest
from typer.main import get_command

from specdec import Generator, cli, demo
from tests.cli.test_options import COMMANDS

SAME = ("model", "dtype", "device", "numerics", "weights", "backend")
# `index` wants a model's tokenizer, and decodes nothing.
DECODE_NOTHING = {"bench-serve", "index", "plugins", "report"}
CHOOSES_ITSELF = {"demo"}  # by default a model that answers, on the engine that is recommended


def options_of(name: str) -> dict[str, Any]:
    group: Any = get_command(cli.app)
    return {option.name: option for option in group.commands[name].params}


def test_every_command_that_decodes_has_these_options_and_they_are_the_same() -> None:
    group: Any = get_command(cli.app)
    names = set(group.commands) - CHOOSES_ITSELF
    assert names > DECODE_NOTHING
    told: dict[str, list[tuple[Any, ...]]] = {
        name: [
            (option.name, option.opts, option.help, option.default, option.required, option.multiple)
            for option in map(options_of(name).get, SAME)
            if option is not None
        ]
        for name in names
    }
    assert {name for name in names if not told[name]} == DECODE_NOTHING - {"index", "bench-serve"}
    for name in names - DECODE_NOTHING:
        assert [each[0] for each in told[name]] == list(SAME), name
        assert told[name] == told["generate"], name
    assert all(each[2] for each in told["generate"])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("--model", "/nowhere", "error: "),
        ("--dtype", "wrong", "error: --dtype 'wrong': it must be bfloat16, float16, float32 or float64"),
        ("--device", "wrong", "error: --device 'wrong' can't be used here: "),
        ("--numerics", "wrong", "error: numerics='wrong': it must be one of auto, exact, fast"),
        ("--weights", "wrong", "error: weights='wrong'"),
        ("--backend", "wrong", "error: unknown backend 'wrong': "),
    ],
)
def test_no_command_ignores_one_of_them(run: Any, command: str, option: str, value: str, fault: str) -> None:
    code, out, err = run(command, *COMMANDS[command], option, value)
    assert (code, out) == (2, "")
    assert err.startswith(fault)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["trace", "race", "mask"])
def test_pictures_are_of_the_model_as_it_was_asked_for(
    run: Any, built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    asked: list[dict[str, str]] = []

    def load(**given: str) -> tuple[Any, Any]:
        asked.append(given)
        return built_in

    monkeypatch.setattr(demo, "load", load)
    made: list[Any] = []
    init = Generator.__init__

    def noting(self: Any, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        made.append((self.numerics.mode, str(self.weights)))

    monkeypatch.setattr(Generator, "__init__", noting)
    arguments = ("--dtype", "bfloat16", "--numerics", "fast", "--weights", "stock", "--max-new-tokens", "8")
    code, _, _ = run(command, *COMMANDS[command], *arguments)
    assert code == 0
    assert asked == [{"dtype": "bfloat16"}]
    assert {mode for mode, _ in made} == {"fast"}
    assert not [weights for _, weights in made if weights.startswith("packed")]
