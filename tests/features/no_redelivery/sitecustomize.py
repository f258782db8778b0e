"""Takes redelivery out of every Python process that finds this directory on its path.

The script `claim` is sent without the lines that make expired leases due again. A process that cut
them says so in the file `$CUT_LOG`; one that does not find them ends at once.
"""

import os
from pathlib import Path

from bide.protocol import scripts

CUTS = {
    "include/reclaim.lua": """  for i = 1, #expired do
    if one(expired[i], has_groups, lost) then given_up[#given_up + 1] = expired[i] end
  end
""",
    # Nor do workers claim again and again because of a lease that has ended.
    "claim.lua": " elseif now < calm_until then by(calm_until) else more = true",
}

_whole = scripts._read


def _cut(path: str) -> str:
    text = _whole(path)
    if path in CUTS:
        if text.count(CUTS[path]) != 1:
            os.write(2, f"{path} does not hold once: {CUTS[path]}\n".encode())
            os._exit(99)
        text = text.replace(CUTS[path], "")
        with Path(os.environ["CUT_LOG"]).open("a") as log:
            log.write(f"{os.getpid()}\n")
    return text


scripts._read = _cut  # type: ignore[assignment]
