"""Every case id of the specified behaviour, by subject, and the cases without a test.

Ids:

    Cnnn        protocol and queues
    CFG-nn      flags and config file
    HTTP-nnn    the HTTP API
    E2E-nn      the time from publish to finish
    STATSD-nn   data sent to statsd
    LOG-nn      the request log
    LKD-nn      nsqlookupd
    LKP-nn      nsqd as its client
    ADM-nnn     nsqadmin
    CL-nnn      the Python client
    TOOL-nnn    options common to all tools
    STAT-nnn, TAIL-nnn, FILE-nnn, HTTP-Tnn, NN-nnn, TO-nnn   the individual tools
    Hnn         requirements of third-party harnesses
    Fn          defects in NSQ's daemons that are absent from nsqcy
    K11         a limitation of NSQ that is absent from nsqcy
"""


def span(first: int, last: int) -> list[str]:
    return [f"C{number:03d}" for number in range(first, last + 1)]


SECTIONS: dict[str, list[str]] = {
    "handshake, framing, line parsing": span(1, 22),
    "heartbeats and timeouts": span(30, 40),
    "IDENTIFY": span(50, 83),
    "TLS and compression": span(90, 109),
    "AUTH": span(120, 138),
    "SUB": span(150, 160),
    "RDY": span(170, 179),
    "FIN, REQ, TOUCH, CLS": span(190, 208),
    "PUB, MPUB, DPUB": span(220, 246),
    "delivery, fan-out, timeouts": span(260, 279),
    "pause, empty, delete, ephemeral": span(290, 304),
    "persistence": [*span(310, 333), "C334", "C335"],
    "topology": span(340, 343),
    "flags and config file": [f"CFG-{number:02d}" for number in range(1, 42)],
    "HTTP": [f"HTTP-{number:03d}" for number in range(1, 88)],
    "end-to-end latency": [f"E2E-{number:02d}" for number in range(1, 5)],
    "statsd": [f"STATSD-{number:02d}" for number in range(1, 7)],
    "request log": [f"LOG-{number:02d}" for number in range(1, 4)],
    "harnesses": [f"H{number:02d}" for number in range(1, 23)],
    "nsqlookupd": [f"LKD-{number:02d}" for number in range(1, 52)],
    "nsqadmin": [f"ADM-{number:03d}" for number in range(1, 69)],
    "client": [f"CL-{number:03d}" for number in range(1, 66)],
    "lookup peers": [f"LKP-{number:02d}" for number in range(1, 17)],
    "tools": [f"TOOL-{number:03d}" for number in range(1, 22)],
    "nsq_tail": [f"TAIL-{number:03d}" for number in range(1, 7)],
    "nsq_to_http": [f"HTTP-T{number:02d}" for number in range(1, 12)],
    "nsq_to_nsq": [f"NN-{number:03d}" for number in range(1, 8)],
    "to_nsq": [f"TO-{number:03d}" for number in range(1, 9)],
    "nsq_stat": [f"STAT-{number:03d}" for number in range(1, 9)],
    "nsq_to_file": [f"FILE-{number:03d}" for number in range(1, 24)],
    "defects": [f"F{number}" for number in range(1, 16)],
    "limitations": ["K11"],
}

CASES = {case for cases in SECTIONS.values() for case in cases}

NEXT: dict[str, str] = {
    "F5": "two entries of one id in a channel's queue cannot be made from outside",
    "F7": "whether a file was synced cannot be seen from outside",
    "F13": "kept as it is: see C227",
}

DEVIATIONS: set[str] = {
    "C235",
    "C242",
    "C265",
    "C270",
    "C271",
    "C275",
    "C313",
    "C314",
    "C317",
    "C318",
    "C320",
    "C321",
    "C322",
    "C323",
    "C324",
    "C330",
    "C331",
    "C332",
    "C334",
    "C335",
    "CFG-03",
    "CFG-04",
    "CFG-09",
    "CFG-22",
    "CFG-28",
    "HTTP-026",
    "HTTP-066",
    "HTTP-070",
    "HTTP-080",
    "STATSD-06",
    "TOOL-004",
    "TOOL-005",
    "HTTP-T07",
    "HTTP-T09",
    "TO-002",
    "LKP-07",
    "LKP-08",
    "LKP-09",
    "LKP-10",
    "LKD-20",
    *(
        "ADM-009",
        "ADM-022",
        "ADM-023",
        "ADM-031",
        "ADM-041",
        "ADM-052",
        "ADM-053",
        "ADM-064",
        "ADM-065",
    ),
    *(f"F{number}" for number in range(1, 16) if number != 13),
    "K11",
}
