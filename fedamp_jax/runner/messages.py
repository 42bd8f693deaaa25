"""What a run prints, and how it says numbers."""

from rich.console import Console

console = Console()


def say(text: str, where: Console | None = None, *, heading: str = "") -> None:
    """Print a sentence, or several, as it is: without colours, and wrapped by the terminal alone.

    Paths may hold anything: rich would take brackets for markup and `:key:` for a picture, and a character that the
    terminal's encoding lacks ends the process.

    Args:
        text: what to say.
        where: the console; None: the standard output's.
        heading: in front of it, in rich's markup.
    """
    where = where or console
    text = text.encode(where.encoding, "backslashreplace").decode(where.encoding)
    where.print(heading, end="")
    where.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)


def readable(seconds: float) -> str:
    """Such as `1.5 h`.

    >>> readable(5400), readable(134.7), readable(1234), readable(3), readable(0.0123)
    ('1.5 h', '2.2 min', '21 min', '3 s', '0.012 s')
    """
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s"))
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def percent(share: float) -> str:
    """A share in percent, with as many decimals as it has.

    >>> percent(0.1), percent(0.104)
    ('10%', '10.4%')
    """
    return f"{100 * share:.10g}%"


def invited(share: float) -> str:
    """The title of a panel: a share of clients that take part."""
    return f"{percent(share)} invited"


def dropped(share: float) -> str:
    """The title of a panel: a share of clients that drop out."""
    return f"{percent(share)} dropped"
