# nsqd, nsqlookupd, nsqadmin and the tools in one image: docker run nsqcy nsqd --help
#
# As with NSQ's own image the programs are found at /nsqd, /nsqlookupd... too, and data is in /data.

ARG PYTHON=3.13-slim-bookworm

# --- a wheel: what has a compiler stays here --------------------------------------------------

FROM python:${PYTHON} AS build
# The compiler of the day, with its fixes.
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
# Whatever else is needed comes as a wheel or not at all.
RUN CFLAGS=-g0 pip wheel --no-cache-dir --no-deps -w /wheels . \
    && python -m venv /opt/nsqcy \
    && /opt/nsqcy/bin/pip install --no-cache-dir --only-binary=:all: /wheels/nsqcy-*.whl \
    && /opt/nsqcy/bin/python -m pip uninstall -y pip

# --- what runs --------------------------------------------------------------------------------

FROM python:${PYTHON}
# curl is for the commands of docs/runbooks, the hook before a stop, and HEALTHCHECK.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 4150 nsqd \
    && useradd --uid 4150 --gid 4150 --home-dir /data --shell /usr/sbin/nologin nsqd \
    && install -d -o nsqd -g nsqd -m 0750 /data
COPY --from=build /opt/nsqcy /opt/nsqcy
ENV PATH=/opt/nsqcy/bin:$PATH
# Links where NSQ's image has its programs.
RUN for each in /opt/nsqcy/bin/*nsq*; do ln -s "$each" "/${each##*/}"; done

USER 4150:4150
WORKDIR /data
VOLUME /data
EXPOSE 4150 4151 4152 4160 4161 4171

# No tini: nsqd's master hears SIGTERM as process 1 too, tells its workers, waits until they have
# saved, and reaps every child, also those it did not start. It is given more time than
# Docker's 10 s: docker stop -t 620.
STOPSIGNAL SIGTERM

# Of whichever daemon runs here. That nsqd does not take publishes at the moment (/ready) is no
# reason to restart it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --retries=6 CMD ["/bin/sh", "-c", \
    "for at in 4151/live 4161/ping 4171/ping; do curl -fs -o /dev/null http://127.0.0.1:$at && exit; done; exit 1"]

CMD ["nsqd", "--data-path=/data"]
