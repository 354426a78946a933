package host

// dot returns a·b, summed in four interleaved parts: the order is part of the
// result and does not depend on anything but the length.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// addScaled adds w·x to sum.
func addScaled(sum, x []float32, w float32) {
	x = x[:len(sum)]
	i := 0
	for ; i+4 <= len(sum); i += 4 {
		s, y := sum[i:i+4:i+4], x[i:i+4:i+4]
		s[0] += w * y[0]
		s[1] += w * y[1]
		s[2] += w * y[2]
		s[3] += w * y[3]
	}
	for ; i < len(sum); i++ {
		sum[i] += w * x[i]
	}
}
