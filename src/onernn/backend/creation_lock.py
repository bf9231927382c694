"""One lock for all that is made once and then shared by threads: primitives, weights, layers.

A fork waits for it. Else a child could inherit the lock held by a thread that the child does not
have, or libdnnl's own, which is held while a primitive is made (measured: 3 children of 10 hang).
"""

from __future__ import annotations

import os
from threading import RLock

CREATION = RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CREATION.acquire, after_in_parent=CREATION.release, after_in_child=CREATION.release
    )
