"""A metric's value as text, for the terminal and the report."""


def short(value: float, digits: int = 3, zeros: bool = False) -> str:
    """Return a number in few characters: `digits` significant ones, thousands as k, M, G; `zeros` keeps trailing
    zeros.
    """
    size = abs(value)
    if size >= 9.995e13 or 0 < size < 0.001:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+", "e")
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= max(factor * 0.9995, 9999.5):
            return f"{value / factor:.3g}{letter}" if size < factor * 999.5 else f"{value / factor:.0f}{letter}"
    return f"{value:.0f}" if size >= 99.95 else f"{value:{'#' if zeros else ''}.{digits}g}"


def share(value: float) -> str:
    """Return a share as a whole percentage; 0 % and 100 % only where it is exactly that."""
    percent = round(100 * value)
    if value > 0 and percent == 0:
        return "<1%"
    return ">99%" if value < 1 and percent == 100 else f"{percent}%"
