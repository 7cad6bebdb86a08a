"""Thin rclpy nodes: parameters, topics, QoS, lifecycle, diagnostics. The only folder that imports rclpy."""
