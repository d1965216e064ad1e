"""Gradio's Blocks, quick for text that goes as it is, and where a handler leaves most of its outputs as they are.

Our handlers answer by component, and one event serves every tab: of some forty outputs a few change. For each of the
others Gradio 6.31 builds the component anew on the server, a millisecond each, while the page's event loop waits. Each
value it takes through a thread, and searches it for files. Forms and HTML are text, and have none.
"""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.blocks import Block
from gradio.components.api_component import Api
from gradio.state_holder import SessionState, StateHolder

from visualize.page.unread import bound


class LeanSession(SessionState):
    """A session of which no component's configuration is kept.

    Gradio builds one for each component when a session begins, some ten milliseconds, and keeps in it whatever the
    session has sent and was answered. It is for deep links to a page's state, which the page does not have.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        super().__init__(cast(gr.Blocks, SimpleNamespace(default_config=blocks.default_config, blocks=())))

    def _update_config(self, key: int) -> None: ...

    def _update_value_in_config(self, key: int, value: Any) -> None: ...


class _LeanSessions(StateHolder):
    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = LeanSession(self.blocks)
        return super().__getitem__(session_id)


class LeanBlocks(gr.Blocks):
    """Blocks in which text is handed on as it is, and an output that is left as it is costs nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Take the sessions that a server keeps as lean ones, and its queue as a bounded one: Gradio makes its own."""
        if name == "state_holder" and type(value) is StateHolder:
            value.__class__ = _LeanSessions
        if name == "_queue":
            bound(value)
        super().__setattr__(name, value)

    async def process_api(self, block_fn: BlockFunction | int, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Call a handler, or an endpoint, in whose reply no file is looked for to add the page's address to."""
        called = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        if all(isinstance(one, Api) for one in called.outputs):
            named["root_path"] = None
        return await super().process_api(block_fn, *arguments, **named)

    async def preprocess_data(
        self, block_fn: BlockFunction, inputs: list[Any], state: SessionState | None, explicit_call: bool = False
    ) -> list[Any]:
        """What a handler is given of what a browser sends. Of what was not sent, the defaults."""
        inputs = [*inputs, *_defaults(block_fn)[len(inputs) :]]
        if all(isinstance(one, Api) for one in block_fn.inputs):
            return inputs[: len(block_fn.inputs)]  # JSON, which the endpoint validates
        pairs = list(zip(block_fn.inputs, inputs, strict=False))
        if state is None or not all(block.stateful or _is_text(block, value) for block, value in pairs):
            return await super().preprocess_data(block_fn, inputs, state, explicit_call)
        self.validate_inputs(block_fn, inputs)
        for block, value in pairs:
            if not block.stateful:
                state._update_value_in_config(block._id, value)
        return [state[block._id] if block.stateful else value for block, value in pairs]

    async def postprocess_data(
        self, block_fn: BlockFunction, predictions: list[Any] | dict[Any, Any], state: SessionState | None
    ) -> list[Any]:
        """What a browser is told of an answer by component; of those that are not in it, that nothing changes.

        An endpoint's reply is JSON already: Gradio would look for files in each of its numbers.
        """
        if len(block_fn.outputs) == 1 and isinstance(block_fn.outputs[0], Api):
            return [predictions]
        if not isinstance(predictions, dict) or not all(isinstance(one, Block) for one in predictions or [None]):
            return await super().postprocess_data(block_fn, predictions, state)
        changed = [one for one in block_fn.outputs if one in predictions]
        if state is None or len(changed) < len(predictions):
            return await super().postprocess_data(block_fn, predictions, state)  # which says what is wrong
        told = {one._id: predictions[one] for one in changed if _is_text(one, predictions[one])}
        for number, text in told.items():
            state._update_value_in_config(number, text)
        fewer = copy.copy(block_fn)
        fewer.outputs = [one for one in changed if one._id not in told]
        if fewer.outputs:
            values = [predictions[one] for one in fewer.outputs]
            answered = await super().postprocess_data(fewer, values[0] if len(values) == 1 else values, state)
            told |= {one._id: value for one, value in zip(fewer.outputs, answered, strict=True)}
        return [told.get(one._id, None if one.stateful else gr.skip()) for one in block_fn.outputs]


def _is_text(block: Block, value: object) -> bool:
    """Whether a value is text of a gr.HTML, which Gradio hands on as it is."""
    return type(block) is gr.HTML and isinstance(value, str)


def _defaults(block_fn: BlockFunction) -> list[Any]:
    """What stands for each value that is not sent: an endpoint's default, or None, which is validated as any value."""
    if block_fn.fn is None or not all(isinstance(one, Api) for one in block_fn.inputs):
        return [None] * len(block_fn.inputs)
    parameters = inspect.signature(block_fn.fn).parameters.values()
    return [None if one.default is inspect.Parameter.empty else one.default for one in parameters]
