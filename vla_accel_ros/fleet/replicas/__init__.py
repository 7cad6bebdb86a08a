"""Replicas compute a fleet's chunks. replica: the interface that a scheduler uses. local: an engine in this
process, the only module here that imports torch. decoding: received observations as the engine takes them.
ray: an engine in a Ray actor, restarted when it is lost. ray_server: the code inside the actor. ray_data:
checks of what is sent and received. ray_cluster: the cluster of the actors, where they run, and call
deadlines. Ray is imported only when it is used."""
