"""The sign-in page: plain HTML without scripts, so that it works when nothing else does.

Everything that is not a constant is escaped. Prevents: a sign-in form that needs the app it protects.
"""

from __future__ import annotations

from html import escape

_STYLE = """
:root { color-scheme: light dark; --back: #f2f5f9; --card: #fff; --text: #16202c; --line: #b9c4d0;
  --accent: #1f5fa8; --on: #fff; --bad: #9c2f00; }
@media (prefers-color-scheme: dark) { :root { --back: #10161d; --card: #1a232d; --text: #e6edf5;
  --line: #4a5968; --accent: #6fb1f5; --on: #10161d; --bad: #ff9d73; } }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
form { background: var(--card); padding: 2rem; border-radius: 0.6rem; width: min(22rem, 86vw);
  border: 1px solid var(--line); }
h1 { font-size: 1.3rem; margin: 0 0 1rem; } label { display: block; margin: 0.8rem 0 0.2rem; }
input { width: 100%; box-sizing: border-box; padding: 0.55rem; font: inherit; color: inherit;
  background: transparent; border: 1px solid var(--line); border-radius: 0.35rem; }
button { margin-top: 1.3rem; width: 100%; padding: 0.6rem; font: inherit; font-weight: 600; border: 0;
  border-radius: 0.35rem; background: var(--accent); color: var(--on); cursor: pointer; }
input:focus-visible, button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
p.problem { color: var(--bad); font-weight: 600; margin: 0; }
"""


def sign_in_page(next_path: str, *, name: str = "", problem: str = "") -> str:
    """Return the form; after signing in the browser goes to `next_path`."""
    said = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Sign in \u00b7 Rhodeck</title><style>{_STYLE}</style></head><body>"
        f'<form method="post" action="/sign-in"><h1>Sign in to Rhodeck</h1>{said}'
        f'<input type="hidden" name="next" value="{escape(next_path)}">'
        '<label for="name">Name</label><input id="name" name="name" autocomplete="username" '
        f'required maxlength="63" value="{escape(name)}" autofocus>'
        '<label for="password">Password</label><input id="password" name="password" type="password" '
        'autocomplete="current-password" required maxlength="200">'
        '<button type="submit">Sign in</button></form></body></html>'
    )


def safe_next(asked: str) -> str:
    """Return `asked` if it is a path of ours, else "/". Another site's address never comes back."""
    is_ours = (
        asked.startswith("/")
        and not asked.startswith(("//", "/\\"))
        and asked.isprintable()
        and asked.isascii()
    )
    return asked if is_ours and "\\" not in asked and len(asked) <= 2_000 else "/"
