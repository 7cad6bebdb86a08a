"""Messages to this package's types and back. convert: of a robot. fleet_convert: of a fleet; fleet_pictures:
its images."""
