"""Gradio's Blocks, quick where a handler leaves most of its outputs as they are.

Our handlers answer by component, and one event serves every tab: of some forty outputs a few change. For each of the
others Gradio 6.31 builds the component anew on the server, a millisecond each, while the page's event loop waits.
"""

from __future__ import annotations

import copy
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.blocks import Block
from gradio.state_holder import SessionState


class LeanBlocks(gr.Blocks):
    """Blocks in which an output that is left as it is costs nothing."""

    async def postprocess_data(
        self, block_fn: BlockFunction, predictions: list[Any] | dict[Any, Any], state: SessionState | None
    ) -> list[Any]:
        """What a browser is told of an answer by component; of those that are not in it, that nothing changes."""
        if not isinstance(predictions, dict) or not all(isinstance(one, Block) for one in predictions or [None]):
            return await super().postprocess_data(block_fn, predictions, state)
        changed = [one for one in block_fn.outputs if one in predictions]
        if len(changed) < len(predictions):
            return await super().postprocess_data(block_fn, predictions, state)  # which says what is wrong
        fewer = copy.copy(block_fn)
        fewer.outputs = changed
        values = [predictions[one] for one in changed]
        answered = await super().postprocess_data(fewer, values[0] if len(values) == 1 else values, state)
        by_id = {one._id: value for one, value in zip(changed, answered, strict=True)}
        return [by_id.get(one._id, None if one.stateful else gr.skip()) for one in block_fn.outputs]
