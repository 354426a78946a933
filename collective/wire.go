package collective

// maxWhat is the most bytes of the description of a call.
const maxWhat = 256
