"""What a browser is told of a handler's answer is what Gradio's own Blocks would tell."""

from __future__ import annotations

import asyncio

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from visualize.page.lean_blocks import LeanBlocks


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
    return said, state[made[3]._id]


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


def test_a_component_that_is_no_output_is_refused():
    with LeanBlocks() as blocks:
        made, other = gr.HTML(), gr.HTML()
        gr.Button("go").click(lambda: None, None, [made])
    (event,) = blocks.fns.values()
    with pytest.raises(ValueError, match="not specified as output"):
        asyncio.run(blocks.postprocess_data(event, {other: "x"}, SessionState(blocks)))
