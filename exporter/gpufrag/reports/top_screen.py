"""The full-screen form of `gpufrag top`. Requires textual (the extra `top`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Input, Static

from ..errors import GpufragError
from ..metrics.scraped import RankRow
from .top import COLUMNS, Column, Condition, cells, chosen, is_bad, parse_filter


class Top(App):  # type: ignore[misc]
    """Reads the ranks every `interval` seconds, in a thread: a slow sidecar does not stop the keys."""

    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("s", "next_column", "sort by next column"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "leave", "leave the filter", show=False),
    ]
    CSS = "DataTable { height: 1fr; } #status { height: 1; } Input { dock: bottom; display: none; }"

    def __init__(
        self,
        read: Callable[[], Sequence[RankRow]],
        interval: float,
        by: Column,
        reverse: bool,
        conditions: Sequence[Condition],
    ) -> None:
        super().__init__()
        self._read, self._seconds = read, interval
        self._by, self._reverse, self._conditions = by, reverse, list(conditions)
        self._rows: Sequence[RankRow] = ()
        self._problem = ""

    def compose(self) -> ComposeResult:
        yield DataTable(zebra_stripes=True, cursor_type="row")
        yield Static(id="status", markup=False)
        yield Input(placeholder="ratio>4, margin<1GiB, rank=3")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self._start_reading()
        self.set_interval(self._seconds, self._start_reading)

    def action_next_column(self) -> None:
        self._by = COLUMNS[(COLUMNS.index(self._by) + 1) % len(COLUMNS)]
        self._show()

    def action_reverse(self) -> None:
        self._reverse = not self._reverse
        self._show()

    def action_filter(self) -> None:
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_leave(self) -> None:
        self.query_one(Input).display = False
        self.query_one(DataTable).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._conditions, self._problem = parse_filter(event.value), ""
        except GpufragError as error:
            self._problem = str(error)
        else:
            self.action_leave()
        self._show()

    def _start_reading(self) -> None:
        self.run_worker(self._take, thread=True, exclusive=True, group="read")

    def _take(self) -> None:
        try:
            rows, problem = self._read(), ""
        except GpufragError as error:
            rows, problem = self._rows, str(error)
        self.call_from_thread(self._replace, rows, problem)

    def _replace(self, rows: Sequence[RankRow], problem: str) -> None:
        self._rows, self._problem = rows, problem
        self._show()

    def _show(self) -> None:
        table = self.query_one(DataTable)
        row, column = table.cursor_row, table.scroll_x
        table.clear(columns=True)
        for each in COLUMNS:
            mark = (" ▼" if self._reverse else " ▲") if each is self._by else ""
            table.add_column(each.name + mark, key=each.name)
        shown = chosen(self._rows, self._conditions, self._by, self._reverse)
        for rank in shown:
            table.add_row(*map(Text, cells(rank)), label="!" if is_bad(rank) else " ")
        table.move_cursor(row=row)
        table.scroll_to(x=column, animate=False)
        status = self._problem or f"{len(shown)} of {len(self._rows)} devices" + (
            ", filtered" if self._conditions else ""
        )
        self.query_one("#status", Static).update(status)
