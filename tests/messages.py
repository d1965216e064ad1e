"""Messages that a browser sends, and what it reads in updates: figures, text, links."""

import base64
import html
import json
import re
import urllib.parse
import zlib

import numpy as np

from tests.experiments import fields
from tests.waiting import run_coroutine
from visualize.views.tabs import read_state


def decode(value):
    """Return a figure that `plot_value` encoded: data, layout, `about`; as plot.js decodes it."""
    stream = zlib.decompress(zlib.decompress(base64.b64decode(value, validate=True)))
    size = int.from_bytes(stream[:4], "little")

    def array(item):
        if "lag" not in item:
            return item
        words = np.frombuffer(
            stream, "<u4", np.prod(item["shape"], dtype=int), 4 + 4 * item["first"]
        )
        if item["lag"]:
            words = np.cumsum(words.reshape(-1, item["lag"]), axis=0, dtype=np.uint32)
        return words.view(f"{item['kind']}4").reshape(item["shape"])

    return json.loads(stream[4 + size :], object_hook=array)


def text_of(markup):
    """Return the visible text, with a space for each tag."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


def menu_labels(form, name):
    """Return the entries of a menu in a form (see `form_value`)."""
    (menu,) = re.findall(rf'<select [^>]*id="knob-{name}"[^>]*>(.*?)</select>', form["html"])
    return [text_of(option) for option in re.findall("<option>(.*?)</option>", menu)]


def links(markup):
    """Return the text and the fields in the address of each link to a state of the page."""
    found = re.findall(r'<a [^>]*?href="\?([^"]*)"[^>]*>(.*?)</a>', str(markup))
    return [
        (text_of(text), dict(urllib.parse.parse_qsl(address.replace("&amp;", "&"))))
        for address, text in found
    ]


def opened(flat, this=None, **others):
    """Return the State of fields, such as "matmul.grouped M=64 tab=dram-reads", on a machine with this GPU."""
    return read_state({**fields(flat), **others}, this)


def settings_of(flat, **message):
    """Return the message of a page that is set to these fields."""
    return {"settings": opened(flat).to_settings(), **message}


def updates(stream):
    """Return all updates of a stream."""

    async def collect():
        return [slots async for slots in stream]

    return run_coroutine(collect())
