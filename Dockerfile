# The sidecar. No torch and no CUDA inside: NVML comes from the driver that the container runtime mounts, where it does.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
RUN python3 -m venv /opt/gpufrag && /opt/gpufrag/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM ${BASE}
LABEL org.opencontainers.image.title="gpufrag" \
      org.opencontainers.image.description="Prometheus exporter for GPU memory fragmentation: the sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpufrag /opt/gpufrag
ENV PATH="/opt/gpufrag/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=utility
# A number, so that Kubernetes can check runAsNonRoot. It must be able to read GPUFRAG_DIR, which it shares with the job.
USER 65532:65532
EXPOSE 9836
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9836/-/healthy', timeout=2)"]
ENTRYPOINT ["gpufrag", "serve"]
# Inside a container, loopback would be reachable by nobody.
CMD ["--host", "0.0.0.0"]
