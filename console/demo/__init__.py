"""An embedded cluster to try everything on: Ray, SSH hosts, a controller. All gone when it ends, however it ends."""
