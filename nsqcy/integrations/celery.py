"""Registration of the transport with kombu and Celery.

    import nsqcy.integrations.celery

    app = Celery("shop", broker="nsqcy://127.0.0.1:4150")

Celery does not need the import if nsqcy is installed as a distribution. kombu has no entry points
for transports, but it loads those of its serializers, and one of them is `SERIALIZER`. Celery loads
them before it connects; a program that uses kombu alone must import this module.
"""

from kombu.transport import TRANSPORT_ALIASES

ALIAS = "nsqcy"
TRANSPORT = "nsqcy.integrations.kombu:Transport"

# Arguments for kombu's register(): encoder, decoder, content type and encoding. Without an encoder
# and a decoder, the serializer cannot be used, and kombu refuses its content type.
SERIALIZER = (None, None, "application/x-nsqcy-transport", "utf-8")


def register() -> None:
    """Make `nsqcy://` and `nsqcy+lookupd://` known as broker URLs. May be called repeatedly."""
    TRANSPORT_ALIASES[ALIAS] = TRANSPORT


register()
