"""What our pictures have in common: an SVG document with its colours, for light and dark backgrounds.

A picture brings its own background and follows `prefers-color-scheme`, so that it can be read on any page. It refers to
nothing outside of itself: GitHub and other sites show an image without scripts, fonts and links.
"""

from html import escape

LIGHT = {
    "page": "#ffffff", "line": "#8c959f", "ink": "#1f2328", "soft": "#59636e", "box": "#f6f8fa", "tile": "#ffffff",
    "down": "#0969da", "up": "#1a7f37", "mark": "#8250df",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "line": "#656c76", "ink": "#f0f6fc", "soft": "#9198a1", "box": "#151b23", "tile": "#212830",
    "down": "#4493f8", "up": "#3fb950", "mark": "#ab7df8",
}  # fmt: skip
SANS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


def document(width: int, height: int, title: str, description: str, *, style: str, body: str) -> str:
    """Return a whole SVG of a size in pixels.

    Its style is CSS that can use the names of LIGHT as variables, such as var(--ink). The description says what the
    picture shows, for a reader who does not see it. The body is elements.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="description">{escape(description)}</desc>\n'
        f"<style>\nsvg {{ {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {_variables(DARK)} }} }}\n{style.strip()}\n</style>\n"
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        f"{body.strip()}\n</svg>\n"
    )


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
