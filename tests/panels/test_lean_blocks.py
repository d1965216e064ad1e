"""What a browser is told of a handler's answer is what Gradio's own Blocks would tell."""

from __future__ import annotations

import asyncio
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState, StateHolder

from visualize.page.lean_blocks import LeanBlocks


def number_of(component):
    return component._id


def told(kind, answer):
    """What a browser is told, with components by their number."""
    with kind() as blocks:
        made = [gr.HTML("a"), gr.HTML("b"), gr.Button("c"), gr.State(1)]
        gr.Button("go").click(lambda: None, None, made)
    (event,) = blocks.fns.values()
    state = SessionState(blocks)
    given = {made[i]: value for i, value in answer.items()} if isinstance(answer, dict) else answer
    values = asyncio.run(blocks.postprocess_data(event, given, state))
    # Of a gr.HTML that stays as it is Gradio says, besides that nothing changes, that its "props" don't.
    said = [{k: v for k, v in value.items() if k != "props"} if isinstance(value, dict) else value for value in values]
    return said, state[number_of(made[3])]


@pytest.mark.parametrize(
    "answer",
    [
        {0: "new"},
        {1: "new", 2: gr.Button(interactive=False)},
        {0: gr.skip()},
        {3: 7},
        {0: "x", 1: "y", 2: "z", 3: 2},
        ["x", "y", "z", 2],
    ],
    ids=["one", "a component", "nothing", "a state", "all", "a list"],
)
def test_an_answer_reaches_the_browser_as_with_gradios_own(answer):
    assert told(LeanBlocks, answer) == told(gr.Blocks, answer)


def given(kind, sent):
    """What a handler is given, and what the session then holds of each component."""
    with kind() as blocks:
        made = [gr.State(1), gr.HTML("a"), gr.Number(2), gr.HTML("c")]
        gr.Button("go").click(lambda *values: None, made, None)
    (event,) = blocks.fns.values()
    state = SessionState(blocks)
    values = asyncio.run(blocks.preprocess_data(event, sent, state))
    return values, [state.config_values[number_of(one)]["props"].get("value") for one in made]


@pytest.mark.parametrize("sent", [[None, "new", 3, "x"], [None, None, None, None], [None, "", 0, "<p>"]])
def test_a_handler_is_given_the_same_as_with_gradios_own(sent):
    assert given(LeanBlocks, list(sent)) == given(gr.Blocks, list(sent))


def finished_immediately(coroutine):
    """What a coroutine returns that waits for nothing: there is no event loop here."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def test_text_takes_no_thread():
    """A thread apiece is what a moved slider waited for longest."""
    with LeanBlocks() as blocks:
        made = [gr.HTML("a"), gr.HTML("b"), gr.State(1)]
        gr.Button("go").click(lambda *values: None, made, made)
    (event,) = blocks.fns.values()
    state = SessionState(blocks)
    assert finished_immediately(blocks.preprocess_data(event, ["x", "y", None], state)) == ["x", "y", 1]
    answer = {made[0]: "z", made[2]: 5}
    assert finished_immediately(blocks.postprocess_data(event, answer, state)) == ["z", gr.skip(), None]
    assert state[number_of(made[2])] == 5


def test_a_component_that_is_no_output_is_refused():
    with LeanBlocks() as blocks:
        made, other = gr.HTML(), gr.HTML()
        gr.Button("go").click(lambda: None, None, [made])
    (event,) = blocks.fns.values()
    with pytest.raises(ValueError, match="not specified as output"):
        asyncio.run(blocks.postprocess_data(event, {other: "x"}, SessionState(blocks)))


def test_of_what_is_not_sent_a_handler_is_given_nothing_and_an_endpoint_its_default():
    values, _ = given(LeanBlocks, [None, "new", 3])
    assert values[1:] == ["new", 3, None]
    with LeanBlocks() as blocks:
        gr.api(echo, api_name="echo")
    (event,) = blocks.fns.values()
    assert asyncio.run(blocks.preprocess_data(event, [], None)) == [None, "compiled"]
    assert asyncio.run(blocks.preprocess_data(event, [{}, "textbook", "more"], None)) == [{}, "textbook"]


def test_a_session_keeps_nothing_of_what_is_sent_and_answered():
    with LeanBlocks() as blocks:
        made = [gr.HTML("a"), gr.HTML("b")]
        gr.Button("go").click(lambda *_: None, made, made)
    blocks.state_holder = StateHolder()
    blocks.state_holder.blocks = blocks
    state = blocks.state_holder["one"]
    (event,) = blocks.fns.values()
    assert asyncio.run(blocks.preprocess_data(event, ["x", "y"], state)) == ["x", "y"]
    assert asyncio.run(blocks.postprocess_data(event, {made[0]: "z"}, state))[0] == "z"
    assert state.config_values == {}
    assert blocks.state_holder["one"] is state


def echo(experiment: dict[str, Any], model: str = "compiled") -> dict[str, Any]:
    return experiment


def test_an_endpoints_json_is_handed_on_as_it_is():
    with LeanBlocks() as blocks:
        gr.api(echo, api_name="echo")
    (event,) = blocks.fns.values()
    sent = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    assert asyncio.run(blocks.preprocess_data(event, [sent], None)) == [sent, "compiled"]
    assert asyncio.run(blocks.postprocess_data(event, sent, None)) == [sent]
