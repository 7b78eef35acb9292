"""A local page to see what is routed where: `page` lays it out, the other modules are pure functions behind it."""
