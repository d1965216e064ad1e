"""Names that move to `state`."""

from visualize.views.state import COLORS as COLORS
from visualize.views.state import PlayerView as PlayerView
from visualize.views.state import ScheduleView as ScheduleView
from visualize.views.state import View as View
