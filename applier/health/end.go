package health

// End is the end of an object that ends by itself: a Job or a Pod. The zero End: it has not ended.
type End struct {
	Over, Succeeded bool
	// Message says why it failed.
	Message string
}

// EndOf returns the end of a Job or a Pod.
func EndOf(live map[string]any) End {
	if textAt(live, "kind") == "Pod" {
		switch statusText(live, "phase") {
		case "Succeeded":
			return End{Over: true, Succeeded: true}
		case "Failed":
			return failedEnd(live)
		}
		return End{}
	}
	switch {
	case conditionOf(live, "Complete").status == "True":
		return End{Over: true, Succeeded: true}
	case conditionOf(live, "Failed").status == "True":
		return failedEnd(live)
	}
	return End{}
}

func failedEnd(live map[string]any) End {
	h, _ := builtinHealth(live)
	return End{Over: true, Message: bounded(h.Message)}
}
