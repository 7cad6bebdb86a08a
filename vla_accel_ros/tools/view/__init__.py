"""`vla view`: what other people's viewers draw of a robot.

command runs it; metrics makes numbers for Prometheus from /diagnostics.
"""
