"""nsqd's HTTP API: the route table.

The handlers are in modules by subject; `context` contains the parts that they share.
"""

from nsqcy.http import pprof
from nsqcy.http.parser import JSON, Reply
from nsqcy.http.router import Need, Route, Router, ignored
from nsqcy.nsqd.http import debugging, messages, policies, publishing, settings, status, topics
from nsqcy.nsqd.http.context import Context


def tls_required(https_port: int) -> Reply:
    """Return the response to plain HTTP if TLS is required. The spaces are part of the response."""
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    return Reply(403, body, JSON, logged=False)


ROUTES = (
    Route("GET", "/ping", status.ping, plain=True, need=Need.NOTHING),
    Route("GET", "/ready", status.ready, plain=True, logged=False, need=Need.NOTHING),
    Route("GET", "/live", status.live, plain=True, logged=False, need=Need.NOTHING),
    Route("GET", "/info", status.info, need=Need.KNOWN),
    Route("GET", "/node", status.node, logged=False, need=Need.KNOWN),
    Route("GET", "/stats", status.stats, body=ignored, need=Need.KNOWN),
    Route("GET", "/metrics", status.metrics, plain=True, logged=False, need=Need.KNOWN),
    Route(
        "POST",
        "/pub",
        publishing.pub,
        body=publishing.pub_limit,
        logged=False,
        inline=True,
        short=publishing.pub_short,
        need=Need.PUBLISH,
    ),
    Route(
        "POST",
        "/mpub",
        publishing.mpub,
        body=publishing.mpub_limit,
        logged=False,
        inline=True,
        need=Need.PUBLISH,
    ),
    Route("POST", "/topic/create", topics.create_topic, need=Need.ADMIN),
    Route("POST", "/topic/delete", topics.delete_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/empty", topics.empty_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/pause", topics.pause_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/unpause", topics.unpause_topic, body=ignored, need=Need.ADMIN),
    Route("GET", "/topic/log", topics.topic_log, need=Need.SUBSCRIBE_ALL),
    Route("GET", "/topic/config", policies.get_topic_policy, need=Need.KNOWN),
    Route(
        "PUT",
        "/topic/config",
        policies.put_topic_policy,
        body=policies.policy_limit,
        need=Need.ADMIN,
        reads_user=True,
    ),
    Route("DELETE", "/topic/config", policies.delete_topic_policy, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/create", topics.create_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/seek", topics.seek_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/delete", topics.delete_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/empty", topics.empty_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/pause", topics.pause_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/unpause", topics.unpause_channel, body=ignored, need=Need.ADMIN),
    Route("GET", "/channel/keys", topics.list_keys, need=Need.SUBSCRIBE),
    Route("POST", "/channel/key/pause", topics.pause_key, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/key/unpause", topics.unpause_key, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/key/empty", topics.empty_key, body=ignored, need=Need.ADMIN),
    Route("GET", "/channel/deferred", messages.deferred, need=Need.SUBSCRIBE),
    Route("GET", "/channel/peek", messages.peek_channel, need=Need.SUBSCRIBE),
    Route("GET", "/topic/peek", messages.peek_topic, need=Need.SUBSCRIBE_ALL),
    Route(
        "POST",
        "/channel/redrive",
        messages.redrive,
        body=ignored,
        need=Need.ADMIN,
        reads_user=True,
    ),
    Route("POST", "/message/cancel", messages.cancel_message, body=ignored, need=Need.ADMIN),
    Route("POST", "/message/delete", messages.delete_message, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/rate", policies.set_rate, body=ignored, need=Need.ADMIN),
    Route("GET", "/copies", status.copies, need=Need.KNOWN),
    Route("GET", "/config/drain", settings.get_drain, need=Need.KNOWN),
    Route("PUT", "/config/drain", settings.put_drain, body=settings.value_limit),
    Route("GET", "/channel/config", policies.get_channel_policy, need=Need.KNOWN),
    Route(
        "PUT",
        "/channel/config",
        policies.put_channel_policy,
        body=policies.policy_limit,
        need=Need.ADMIN,
        reads_user=True,
    ),
    Route(
        "DELETE", "/channel/config", policies.delete_channel_policy, body=ignored, need=Need.ADMIN
    ),
    Route("POST", "/config/reload", settings.reload, body=ignored),
    Route("GET", "/upgrade", settings.get_upgrade, need=Need.KNOWN),
    Route("POST", "/upgrade", settings.begin_upgrade, body=ignored),
    Route("GET", "/config/:opt", settings.get_option),
    Route("PUT", "/config/:opt", settings.put_option, body=settings.value_limit),
    *pprof.routes("/debug/pprof/", lambda api: api.backend),
    Route(
        "PUT",
        "/debug/setblockrate",
        debugging.debug_block_rate,
        body=debugging.form_limit,
        plain=True,
        local=True,
    ),
    Route("POST", "/debug/freememory", debugging.debug_free, plain=True, local=True),
)


class Api(Context):
    """The routes, and the objects that their handlers depend on."""

    router = Router(ROUTES)
