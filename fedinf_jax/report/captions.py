"""Titles of the figures, and how to read them."""

# Name of a figure → heading, how to read it.
CAPTIONS = {
  "fig1_layers": (
    "Fig. 1: one client, layer by layer",
    "Of the tracked clients, the one with the largest influence. In each layer,"
    " the size of the estimated change of the model (norm) and,"
    " where the truth is known, the distance from it (error). Log scale: a line"
    " that climbs steadily grows exponentially and may leave the chart. Of"
    " many layers, the eight with the largest change.",
  ),
  "fig2_distance": (
    "Fig. 2: distance from the truth",
    "Of the tracked clients, those with the largest influence. Lower is better."
    " An estimate above the dashed line is worse than saying that the client"
    " changes nothing; log scale, cut off at a hundred times the truth.",
  ),
  "fig3_pearson": (
    "Fig. 3: agreement with retraining, over rounds",
    "1 means that estimated influence on the loss is proportional to the exact"
    " one over all clients, 0 that it says nothing about it.",
  ),
  "fig3_scatter": (
    "Fig. 3: estimated against exact influence on the loss",
    "A dot is a client at the last round; on the dashed diagonal the estimate"
    " is right. Ringed are the clients that the verdict names. Triangles on the"
    " edge lie beyond the frame.",
  ),
  "fig4_cleanse": (
    "Fig. 4: clients removed, training continued",
    "If influence finds the right clients, the red line (most harmful removed)"
    " has the lowest loss and highest accuracy and the blue line the worst."
    " Bars: one standard deviation over the random draws.",
  ),
  "fig4_cleanse_rounds": (
    "Fig. 4 over rounds",
    "The same for one share of clients, in the rounds after they were removed.",
  ),
  "debug": (
    "Finding bad clients",
    "How well each score finds the clients that were made bad on purpose;"
    " longer is better, the dashed line is guessing.",
  ),
}
