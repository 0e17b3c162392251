"""`oncurve view`: runs in a browser, from a server on this machine alone or as a copy that needs none.

Safe by default: the server listens on 127.0.0.1, and data needs the random key that the printed link carries. Other
origins and host names are refused, and no route writes. Texts of models and data reach the page as JSON and are shown
through text nodes alone; the content security policy is a second wall.

Covered: runs that go on, servers that end and return, links out of a run's folder, which are refused.
Not covered: several users on one server, TLS (use an SSH tunnel), what may read this user's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.view.command import copy_runs, view
    from oncurve.view.front import FOLDER, bundle
    from oncurve.view.library import Library
    from oncurve.view.server import application

__getattr__, __all__ = lazily(__name__)
