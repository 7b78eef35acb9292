"""A local page that shows routing at work: `page` is its layout, `handlers` the functions behind it."""
