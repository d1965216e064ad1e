"""Names that move to `slots`."""

from visualize.views.slots import control as field
from visualize.views.slots import controls as fields
from visualize.views.slots import form_of as of
from visualize.views.slots import form_value as filled
from visualize.views.slots import problems_value as placed

__all__ = ["field", "fields", "filled", "of", "placed"]
