# Jetson with JetPack 6 (Orin; Ubuntu 22.04, Humble) or 7 (Thor; Ubuntu 24.04, Jazzy). Linted, not built: there was no Jetson.
# WHEELS: the package index with torch and triton for the module's JetPack, see NVIDIA's "PyTorch for Jetson".
#   docker build -f docker/jetpack.Dockerfile -t vla_accel_ros --build-arg WHEELS=INDEX .
#   docker build -f docker/jetpack.Dockerfile -t vla_accel_ros --build-arg BASE=nvcr.io/nvidia/cuda:13.0.0-devel-ubuntu24.04 \
#     --build-arg ROS_DISTRO=jazzy --build-arg WHEELS=INDEX .
ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0
FROM ${BASE}
ARG ROS_DISTRO=humble
ARG WHEELS
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV ROS_DISTRO=${ROS_DISTRO} VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends curl ca-certificates \
 && curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key -o /usr/share/keyrings/ros.gpg \
 && echo "deb [signed-by=/usr/share/keyrings/ros.gpg] http://packages.ros.org/ros2/ubuntu $(. /etc/os-release && echo "$VERSION_CODENAME") main" \
    > /etc/apt/sources.list.d/ros2.list \
 && apt-get update && apt-get install -y --no-install-recommends "ros-$ROS_DISTRO-ros-base" ros-dev-tools python3-venv python3-pip \
 && rosdep init && rm -rf /var/lib/apt/lists/*
WORKDIR /ws/src/vla_accel_ros
COPY requirements requirements
# torch and triton are those that are built for the module's GPU.
# hadolint ignore=DL3013
RUN python3 -m venv --system-site-packages /opt/venv && touch /opt/venv/COLCON_IGNORE \
 && PIP_INDEX_URL="${WHEELS:?give --build-arg WHEELS=INDEX}" pip install --no-cache-dir torch triton \
 && pip install --no-cache-dir -r requirements/robot.txt \
 && if [ "$ROS_DISTRO" = humble ]; then pip install --no-cache-dir "numpy<2"; fi
COPY . .
WORKDIR /ws
RUN apt-get update && rosdep update --rosdistro "$ROS_DISTRO" \
 && rosdep install --from-paths src src/vla_accel_ros/msg --ignore-src -y --dependency-types build --dependency-types exec \
 && . "/opt/ros/$ROS_DISTRO/setup.sh" \
 && python3 -m colcon build --base-paths src/vla_accel_ros src/vla_accel_ros/msg \
 && rm -rf /var/lib/apt/lists/* build log
COPY docker/entrypoint.sh /entrypoint.sh
ENTRYPOINT ["/entrypoint.sh"]
CMD ["vla", "doctor"]
