"""The node `inference` of a robot whose chunks come from a policy server of openpi's protocol. Nothing here
imports torch. node: the lifecycle node."""
