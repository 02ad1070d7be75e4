"""nsqlookupd as third-party libraries query it."""

import gnsq
import pytest
from gnsq.errors import NSQHttpError

from support.nsqlookupd_process import Lookupd


def test_gnsq() -> None:
    with Lookupd() as lookupd:
        conn = lookupd.connect()
        conn.identify("10.0.0.5", tcp_port=4150, http_port=4151)
        conn.register("t", "c")
        client = gnsq.LookupdClient("127.0.0.1", lookupd.http_port)
        assert client.ping() == b"OK"
        assert client.info() == {"version": "1.3.0"}
        assert client.topics() == {"topics": ["t"]}
        assert client.channels("t") == {"channels": ["c"]}
        assert [each["topics"] for each in client.nodes()["producers"]] == [["t"]]
        (producer,) = client.lookup("t")["producers"]
        assert (producer["broadcast_address"], producer["tcp_port"]) == ("10.0.0.5", 4150)
        client.tombstone_topic("t", "10.0.0.5:4151")
        assert client.lookup("t") == {"channels": ["c"], "producers": []}
        client.create_channel("u", "d#ephemeral")
        assert client.channels("u") == {"channels": ["d#ephemeral"]}
        client.delete_channel("u", "d#ephemeral")
        client.delete_topic("u")
        with pytest.raises(NSQHttpError, match="404"):
            client.lookup("u")
