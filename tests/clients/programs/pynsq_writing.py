"""Checks the results and errors of a pynsq writer. Arguments: ADDRESS TOPIC."""

import asyncio
import sys
from typing import Any

import nsq

ADDRESS, TOPIC = sys.argv[1:]


def said(data: Any) -> str:
    if isinstance(data, nsq.protocol.SendError):
        return f"SendError {data.msg} {data.error is None}"
    if isinstance(data, nsq.Error):
        return f"{type(data).__name__} {data}"
    return repr(data)


async def main() -> None:
    writer, lonely = nsq.Writer([ADDRESS], reconnect_interval=0.1), nsq.Writer("127.0.0.1:1")
    loop = asyncio.get_running_loop()

    async def ask(publish: Any, *args: Any) -> None:
        while not writer.conns:
            await asyncio.sleep(0.01)
        answer = loop.create_future()
        future = publish(*args, callback=lambda conn, data: answer.set_result(data))
        print(said(await asyncio.wait_for(answer, 10)))
        await asyncio.wait([asyncio.ensure_future(future)])
        future.exception()

    await ask(writer.pub, TOPIC, b"1")
    await ask(writer.mpub, TOPIC, [b"2", b"3"])
    await ask(writer.mpub, TOPIC, b"4")
    await ask(writer.dpub, TOPIC, 10, b"5")
    await ask(lonely.pub, TOPIC, b"x")
    await ask(writer.dpub, TOPIC, -1, b"x")
    await ask(writer.pub, TOPIC, "text")
    await ask(writer.pub, TOPIC, b"6")


asyncio.run(main())
