"""From an alert to a restarted job: the receiver of webhooks, its policy, and the clusters that it acts on."""
