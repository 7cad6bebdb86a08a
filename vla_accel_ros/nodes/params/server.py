"""Parameters of the node inference if a policy server makes its chunks; openpi_inference reads them."""

from __future__ import annotations

from vla_accel_ros.nodes.params.parameter import Parameter

OF_A_SERVER = (
    Parameter("server_url", "ws://127.0.0.1:8000", "Address of the policy server, for engine: openpi."),
    Parameter("server_token_file", "", "File with the token that the server wants; empty: none."),
    Parameter(
        "server_hz", 10.0, "Most requests a second, each with newer images [Hz].", minimum=0.1, maximum=240.0
    ),
    Parameter(
        "server_deadline_s",
        0.0,
        "An answer that takes longer is given up and the connection made anew [s]; 0: chunk.max_age_s of the "
        "contract.",
        0.0,
        60.0,
    ),
)
