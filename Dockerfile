# Two images: the sidecar, and with `--target receiver` the restarter. No torch and no CUDA inside: NVML comes from the
# driver that the container runtime mounts, where it does.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
# Where pip finds its packages, if not at its default: an index of your own, or a folder of wheels without a network.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
COPY docs/runbooks docs/runbooks
RUN python3 -m venv /opt/gpufrag \
    && /opt/gpufrag/bin/pip install --no-cache-dir --disable-pip-version-check . \
    && /opt/gpufrag/bin/gpufrag install-agent /gpufrag-agent

FROM build AS build-receiver
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
RUN /opt/gpufrag/bin/pip install --no-cache-dir --disable-pip-version-check '.[restarter]'

FROM ${BASE} AS receiver
LABEL org.opencontainers.image.title="gpufrag-restarter" \
      org.opencontainers.image.description="From an alert about fragmented GPU memory to a restarted job" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-receiver /opt/gpufrag /opt/gpufrag
ENV PATH="/opt/gpufrag/bin:$PATH" \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 9837 9838
ENTRYPOINT ["gpufrag", "restarter"]

FROM ${BASE} AS sidecar
LABEL org.opencontainers.image.title="gpufrag" \
      org.opencontainers.image.description="Prometheus exporter for GPU memory fragmentation: the sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpufrag /opt/gpufrag
# For an init container that has only cp: cp -r /gpufrag-agent/. VOLUME
COPY --from=build /gpufrag-agent /gpufrag-agent
ENV PATH="/opt/gpufrag/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=utility
# A number, so that Kubernetes can check runAsNonRoot. In GPUFRAG_DIR, which it shares with the job, it must be able to
# connect to the ranks' sockets: run both as one user (--user), or give the folder, before the job starts, to a group of
# both (chmod 2770; in Kubernetes an emptyDir volume, or fsGroup). Else /-/ready says how many ranks are denied.
USER 65532:65532
EXPOSE 9836
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=3 \
    CMD ["gpufrag", "healthcheck"]
ENTRYPOINT ["gpufrag", "serve"]
# Inside a container, loopback would be reachable by nobody.
CMD ["--host", "0.0.0.0"]
