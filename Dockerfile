# nsqd, nsqlookupd, nsqadmin and the tools in one image: docker run nsqcy nsqd --help
#
# As in NSQ's image, the programs are also available as /nsqd, /nsqlookupd..., and data is in /data.

ARG PYTHON=3.13-slim-bookworm

# --- build a wheel; the compiler stays in this stage ------------------------------------------

FROM python:${PYTHON} AS build
# Use the current compiler package, with its latest fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY cext cext
COPY conf conf
COPY nsqcy nsqcy
COPY pyspark_nsq pyspark_nsq
# Dependencies are installed only as wheels.
RUN CFLAGS=-g0 pip wheel --no-cache-dir --no-deps -w /wheels . \
    && python -m venv /opt/nsqcy \
    && /opt/nsqcy/bin/pip install --no-cache-dir --only-binary=:all: /wheels/nsqcy-*.whl \
    && /opt/nsqcy/bin/python -m pip uninstall -y pip

# --- the runtime image ------------------------------------------------------------------------

FROM python:${PYTHON}
# curl is for the commands in docs/runbooks, the preStop hook, and HEALTHCHECK.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 4150 nsqd \
    && useradd --uid 4150 --gid 4150 --home-dir /data --shell /usr/sbin/nologin nsqd \
    && install -d -o nsqd -g nsqd -m 0750 /data
COPY --from=build /opt/nsqcy /opt/nsqcy
ENV PATH=/opt/nsqcy/bin:$PATH
# Links in the places where NSQ's image has its programs.
RUN for each in /opt/nsqcy/bin/*nsq*; do ln -s "$each" "/${each##*/}"; done

USER 4150:4150
WORKDIR /data
VOLUME /data
EXPOSE 4150 4151 4152 4160 4161 4171

# tini is not needed: even as process 1, nsqd's master handles SIGTERM, stops its workers, waits
# until they have saved, and reaps all children, including those that it did not start. Give it more
# time than Docker's 10 s: docker stop -t 620.
STOPSIGNAL SIGTERM

# Checks whichever daemon runs in this container. It does not use /ready: nsqd does not have to be
# restarted because it temporarily refuses publishes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --retries=6 CMD ["/bin/sh", "-c", \
    "for at in 4151/live 4161/ping 4171/ping; do curl -fs -o /dev/null http://127.0.0.1:$at && exit; done; exit 1"]

CMD ["nsqd", "--data-path=/data"]
