"""What a message says that its chunk agrees with, read off the fields of ActionChunk.

Messages come from the middleware or out of a bag, decoded by other classes with the same fields; one reader
for both means that a chunk computed again is given what the first one was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_accel_ros.types import Agreement


def agreement_from_message(message: Any) -> Agreement | None:
    """What a chunk was made to agree with, as its engine had it; None when it is free.

    message: an ActionChunk, or one decoded from a bag.
    Raises ValueError, in one sentence, when its numbers are no whole rows.
    """
    if not message.agreement:
        return None
    if not message.action_dim or len(message.agreed_actions) % message.action_dim:
        raise ValueError(
            f"action_chunk {message.request_id} agrees with {len(message.agreed_actions)} numbers, which are "
            f"no rows of {message.action_dim}"
        )
    return Agreement(
        method=message.agreement,
        actions=np.array(message.agreed_actions, np.float32).reshape(-1, message.action_dim),
        delay=message.agreed_delay,
        end=message.agreed_end,
        schedule=message.agreed_schedule,
        jacobian=message.agreed_jacobian,
        max_weight=message.agreed_max_weight,
        previous=message.agreed_previous,
    )
