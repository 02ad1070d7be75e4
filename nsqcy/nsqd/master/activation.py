"""Assignment of sockets that a service manager has opened.

Each socket is assigned by its name from the service manager, otherwise by its configured
address, otherwise in the order tcp, http, https. Imported before the slow modules.
"""

from nsqcy.errors import StartError, Stop
from nsqcy.net import listeners
from nsqcy.net.listeners import Listener
from nsqcy.process.systemd import Inherited


def assign(inherited: list[Inherited], addresses: dict[str, str]) -> list[Listener]:
    """Return a listener for each socket.

    `addresses` contains the address of each kind. An empty address means that only a socket with
    the kind's name is used for it. On error, all sockets are closed.
    """
    try:
        return _assign(inherited, addresses)
    except Stop:
        for each in inherited:
            each.sock.close()
        raise


def _assign(inherited: list[Inherited], addresses: dict[str, str]) -> list[Listener]:
    found: dict[str, Listener] = {}
    nameless: list[Listener] = []
    for sock, name in inherited:
        if name not in addresses:
            nameless.append(listeners.adopt(sock, name))
        elif name in found:
            raise _refuse(f"two sockets are named {name}", addresses)
        else:
            found[name] = listeners.adopt(sock, name)
    left = []
    for listener in nameless:
        kind = _by_address(listener, found, addresses)
        if kind:
            found[kind] = listener._replace(kind=kind)
        else:
            left.append(listener)
    for listener in left:
        kind = next((one for one in addresses if addresses[one] and one not in found), "")
        if not kind:
            name = f" ({listener.kind})" if listener.kind else ""
            raise _refuse(f"unexpected {listener.text}{name}", addresses)
        found[kind] = listener._replace(kind=kind)
    return list(found.values())


def _by_address(listener: Listener, found: dict[str, Listener], addresses: dict[str, str]) -> str:
    for kind, address in addresses.items():
        if address and kind not in found and listeners.is_at(listener, address):
            return kind
    return ""


def _refuse(text: str, addresses: dict[str, str]) -> StartError:
    return StartError(
        f"failed to receive sockets - {text} (allowed: one socket for each of"
        f" {', '.join(addresses)},"
        " identified by FileDescriptorName= or by address, or passed in this order)"
    )
