"""Files about a robot. fields and bounded_yaml: how YAML is read; urdf: joint limits from a URDF; kinematics:
where joints lead its links."""
